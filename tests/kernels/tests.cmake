# The comparison harness is shared by the tests of every backend.
target_sources(kernels_tests PRIVATE
  ${CMAKE_SOURCE_DIR}/tests/kernels/ops_compare.cc
  ${CMAKE_SOURCE_DIR}/tests/kernels/ops_cases_dense.cc
  ${CMAKE_SOURCE_DIR}/tests/kernels/ops_cases_cache.cc)
target_link_libraries(kernels_tests PRIVATE nlohmann_json::nlohmann_json)
# The harness draws megabytes of random weights.
if(NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  set_source_files_properties(${CMAKE_SOURCE_DIR}/tests/kernels/ops_compare.cc PROPERTIES COMPILE_OPTIONS "-O2")
endif()
