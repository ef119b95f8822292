# The C interface from C, against the shared library that others would link.
add_executable(structured_c_api_check ${CMAKE_SOURCE_DIR}/tests/structured/c_api_check.c)
set_target_properties(structured_c_api_check PROPERTIES C_STANDARD 11)
target_compile_options(structured_c_api_check PRIVATE -Wall -Wextra -Wpedantic -Wconversion -Werror)
target_include_directories(structured_c_api_check PRIVATE ${CMAKE_SOURCE_DIR}/src)
target_link_libraries(structured_c_api_check PRIVATE deepinfer_structured)
# The sanitizer's runtime has to come with the program where the library was built with it.
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  set_target_properties(structured_c_api_check PROPERTIES LINKER_LANGUAGE CXX)
endif()
add_test(NAME structured_c_api COMMAND structured_c_api_check ${CMAKE_SOURCE_DIR}/models/tiny)
set_tests_properties(structured_c_api PROPERTIES LABELS unit TIMEOUT 120)
