# The comparison harness is shared by the tests of every backend.
target_sources(kernels_tests PRIVATE
  ${CMAKE_SOURCE_DIR}/tests/kernels/ops_compare.cc
  ${CMAKE_SOURCE_DIR}/tests/kernels/ops_cases_dense.cc
  ${CMAKE_SOURCE_DIR}/tests/kernels/ops_cases_cache.cc)
target_link_libraries(kernels_tests PRIVATE nlohmann_json::nlohmann_json)
# The harness draws megabytes of random weights.
set_source_files_properties(${CMAKE_SOURCE_DIR}/tests/kernels/ops_compare.cc PROPERTIES COMPILE_OPTIONS "-O2")

# The tokens of expert-parallel ranks beside those of one, on the devices that are named.
add_executable(ranks_compare EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/tests/kernels/cuda_device/ranks_compare.cc)
target_link_libraries(ranks_compare PRIVATE di_cli di_warnings)

if(DI_CUDA)
  # On a device; skipped, with the reason, where there is none.
  add_executable(kernels_cuda_tests
    ${CMAKE_SOURCE_DIR}/tests/kernels/cuda_device/device_test.cc
    ${CMAKE_SOURCE_DIR}/tests/kernels/ops_compare.cc
    ${CMAKE_SOURCE_DIR}/tests/kernels/ops_cases_dense.cc
    ${CMAKE_SOURCE_DIR}/tests/kernels/ops_cases_cache.cc)
  target_link_libraries(kernels_cuda_tests PRIVATE di_kernels di_device CUDA::cudart_static di_warnings GTest::gtest GTest::gtest_main)
  target_include_directories(kernels_cuda_tests PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  add_test(NAME kernels_cuda COMMAND kernels_cuda_tests)
  set_tests_properties(kernels_cuda PROPERTIES LABELS unit TIMEOUT 900)

  add_executable(greedy_compare EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/tests/kernels/cuda_device/greedy_compare.cc)
  target_link_libraries(greedy_compare PRIVATE di_cli di_warnings)

  add_executable(bench_kernels_cuda EXCLUDE_FROM_ALL
    ${CMAKE_SOURCE_DIR}/bench/device/bench_kernels_cuda.cc ${CMAKE_SOURCE_DIR}/bench/device/ceilings.cu)
  target_link_libraries(bench_kernels_cuda PRIVATE di_kernels di_device CUDA::cublas CUDA::cublasLt)

  # Counts the runtime calls of a program that is started with CUDA_INJECTION64_PATH pointing at it.
  find_library(DI_CUPTI cupti HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_TARGET_DIR}/lib
    ${CUDAToolkit_TARGET_DIR}/extras/CUPTI/lib64)
  if(DI_CUPTI)
    add_library(api_calls MODULE EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/bench/device/api_calls.cc)
    target_include_directories(api_calls SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    target_link_libraries(api_calls PRIVATE ${DI_CUPTI})
    add_library(faults MODULE EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/bench/device/faults.cc)
    target_link_libraries(faults PRIVATE CUDA::cuda_driver)
  endif()
else()
  # Without the backend, whose operators have the same names: the kernels on the CPU, under the sequential emulation of
  # cuda_emulation/. One C++ file per .cu file.
  file(GLOB di_cuda_kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/cuda/*.cu)
  set(di_emulated_sources ${CMAKE_SOURCE_DIR}/tests/kernels/cuda_emulation/emulation.cc)
  foreach(kernel ${di_cuda_kernels} ${CMAKE_SOURCE_DIR}/src/kernels/cuda/table.cc)
    get_filename_component(kernel_stem ${kernel} NAME_WE)
    set(emulated ${CMAKE_BINARY_DIR}/cuda_emulation/${kernel_stem}.cc)
    get_filename_component(kernel_name ${kernel} NAME)
    file(CONFIGURE OUTPUT ${emulated} CONTENT "#include \"kernels/cuda/@kernel_name@\"\n" @ONLY)
    list(APPEND di_emulated_sources ${emulated})
  endforeach()
  add_library(di_cuda_emulated STATIC ${di_emulated_sources})
  target_include_directories(di_cuda_emulated PUBLIC
    ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/tests ${CMAKE_SOURCE_DIR}/tests/kernels)
  target_link_libraries(di_cuda_emulated PRIVATE di_warnings)
  # `#pragma unroll` is for nvcc.
  target_compile_options(di_cuda_emulated PRIVATE -ffp-contract=off -Wno-unknown-pragmas -Wno-pass-failed)
  add_executable(kernels_cuda_emulated_tests
    ${CMAKE_SOURCE_DIR}/tests/kernels/cuda_emulation/emulated_test.cc
    ${CMAKE_SOURCE_DIR}/tests/kernels/cuda_emulation/formats_test.cc
    ${CMAKE_SOURCE_DIR}/tests/kernels/cuda_emulation/model_test.cc
    ${CMAKE_SOURCE_DIR}/tests/kernels/ops_compare.cc
    ${CMAKE_SOURCE_DIR}/tests/kernels/ops_cases_dense.cc
    ${CMAKE_SOURCE_DIR}/tests/kernels/ops_cases_cache.cc)
  target_link_libraries(kernels_cuda_emulated_tests PRIVATE
    di_cuda_emulated di_model di_kernels di_test_folders di_warnings GTest::gtest GTest::gtest_main)
  target_include_directories(kernels_cuda_emulated_tests PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
    # The fibers switch stacks under the sanitizers' feet: compiled only.
    target_compile_options(di_cuda_emulated PRIVATE -fno-sanitize=all -O0)
    target_compile_options(kernels_cuda_emulated_tests PRIVATE -fno-sanitize=all -O0)
  else()
    target_compile_options(di_cuda_emulated PRIVATE -O2)
    add_test(NAME kernels_cuda_emulated COMMAND kernels_cuda_emulated_tests)
    set_tests_properties(kernels_cuda_emulated PROPERTIES LABELS unit TIMEOUT 900)
  endif()
endif()
