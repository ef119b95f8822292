# PCRE2 is the oracle of the pre-tokenizer; the product does not use it.
target_link_libraries(codec_tests PRIVATE PkgConfig::PCRE2)
# The C interface from C, against the shared library that others would link.
add_executable(codec_c_api_check ${CMAKE_SOURCE_DIR}/tests/codec/c_api_check.c)
set_target_properties(codec_c_api_check PROPERTIES C_STANDARD 11)
target_compile_options(codec_c_api_check PRIVATE -Wall -Wextra -Wpedantic -Wconversion -Werror)
target_include_directories(codec_c_api_check PRIVATE ${CMAKE_SOURCE_DIR}/src)
target_link_libraries(codec_c_api_check PRIVATE deepinfer_codec)
# The sanitizer's runtime has to come with the program where the library was built with it.
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  set_target_properties(codec_c_api_check PROPERTIES LINKER_LANGUAGE CXX)
endif()
add_test(NAME codec_c_api COMMAND codec_c_api_check ${CMAKE_SOURCE_DIR}/models/tiny)
set_tests_properties(codec_c_api PROPERTIES LABELS unit TIMEOUT 120)
