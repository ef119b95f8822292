# Which room may link which (the include rule is checked by tools/check_layers.py with the same table).
set(DI_ROOMS_base)
set(DI_ROOMS_codec base)
set(DI_ROOMS_structured base)
set(DI_ROOMS_device base)
set(DI_ROOMS_kernels base device)
set(DI_ROOMS_model base device kernels)
set(DI_ROOMS_kv base device)
set(DI_ROOMS_store base)
set(DI_ROOMS_engine base codec structured device model kv)
set(DI_ROOMS_cluster base kv store engine)
set(DI_ROOMS_server base codec structured engine cluster)

# di_room(name): the static library di_<name> from src/<name>/**/*.cc and the test program <name>_tests from
# tests/<name>/*_test.cc. A folder may bring src/<name>/room.cmake for third-party links and per-file flags.
function(di_room name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cc)
  if(NOT DI_CUDA)
    list(FILTER sources EXCLUDE REGEX "/src/${name}/cuda/")
  endif()
  if(NOT sources)
    return()
  endif()
  set(target di_${name})
  add_library(${target} STATIC ${sources})
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  foreach(dep ${DI_ROOMS_${name}})
    if(TARGET di_${dep})
      target_link_libraries(${target} PUBLIC di_${dep})
    endif()
  endforeach()
  target_link_libraries(${target} PRIVATE di_warnings)
  if(EXISTS ${CMAKE_SOURCE_DIR}/src/${name}/room.cmake)
    include(${CMAKE_SOURCE_DIR}/src/${name}/room.cmake)
  endif()
  di_room_options(${target} ${name})
  if(DI_TESTS)
    di_room_tests(${name})
  endif()
endfunction()

# The build asan is compiled without optimisation (a third of the time), but for the files that compute: their tests would
# take longer than is saved. The kernels choose for themselves (room.cmake). Fuzzers are led by the counters of the
# rooms that they test.
set(DI_COMPUTING "/src/(base|model|engine|structured|codec/tokenizer|codec/image)/")
function(di_room_options target name)
  if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
    get_target_property(sources ${target} SOURCES)
    list(FILTER sources INCLUDE REGEX ${DI_COMPUTING})
    list(FILTER sources EXCLUDE REGEX "/read_tokenizer_json\\.cc$")  # simdjson's templates: a minute
    set_property(SOURCE ${sources} APPEND PROPERTY COMPILE_OPTIONS -O1)
  endif()
  if(DI_FUZZ AND name MATCHES "^(base|codec|structured|server)$")
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()

# What a test program has besides its sources: its libraries and where it finds what it reads (tests/support/folders.h).
# Tests of the release build are not optimised: most of their time is the compiler's.
function(di_test_program target)
  if(NOT CMAKE_CXX_FLAGS MATCHES "-O[01g]")
    target_compile_options(${target} PRIVATE -O0)
  endif()
  target_link_libraries(${target} PRIVATE di_test_folders di_warnings GTest::gtest GTest::gmock GTest::gtest_main)
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
endfunction()

function(di_room_tests name)
  file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${name}/*_test.cc)
  if(NOT tests)
    return()
  endif()
  add_executable(${name}_tests ${tests})
  di_test_program(${name}_tests)
  target_link_libraries(${name}_tests PRIVATE di_${name})
  if(EXISTS ${CMAKE_SOURCE_DIR}/tests/${name}/tests.cmake)
    include(${CMAKE_SOURCE_DIR}/tests/${name}/tests.cmake)
  endif()
  # One ctest entry per program: process start-up and fixture loading are paid once.
  add_test(NAME ${name} COMMAND ${name}_tests)
  set_tests_properties(${name} PROPERTIES LABELS unit TIMEOUT 900)
endfunction()

# The C interface of a room from C (tests/<name>/c_api_check.c), against the shared library that others would link.
function(di_c_api_check name)
  add_executable(${name}_c_api_check ${CMAKE_SOURCE_DIR}/tests/${name}/c_api_check.c)
  set_target_properties(${name}_c_api_check PROPERTIES C_STANDARD 11)
  target_compile_options(${name}_c_api_check PRIVATE -Wall -Wextra -Wpedantic -Wconversion -Werror)
  target_include_directories(${name}_c_api_check PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(${name}_c_api_check PRIVATE deepinfer_${name})
  # The sanitizer's runtime has to come with the program where the library was built with it.
  if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
    set_target_properties(${name}_c_api_check PROPERTIES LINKER_LANGUAGE CXX)
  endif()
  add_test(NAME ${name}_c_api COMMAND ${name}_c_api_check ${CMAKE_SOURCE_DIR}/models/tiny)
  set_tests_properties(${name}_c_api PROPERTIES LABELS unit TIMEOUT 120)
endfunction()

function(di_test_data)
  if(NOT EXISTS ${DI_VECTORS_DIR})
    message(STATUS "reference vectors not found at ${DI_VECTORS_DIR}: tests that need them will be skipped")
  endif()
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/test_folders.cc @ONLY CONTENT [[
#include "support/folders.h"
namespace di::test {
const char kData[] = "@CMAKE_SOURCE_DIR@/tests/data";
const char kModels[] = "@CMAKE_SOURCE_DIR@/models";
const char kVectors[] = "@DI_VECTORS_DIR@";
}
]])
  add_library(di_test_folders STATIC ${CMAKE_BINARY_DIR}/generated/test_folders.cc)
  target_include_directories(di_test_folders PUBLIC ${CMAKE_SOURCE_DIR}/tests)
endfunction()
