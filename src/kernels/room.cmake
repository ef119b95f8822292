# The kernels are compiled with full optimisation in every build: an edit loop with -Og operators would make the model's
# tests useless; with -O1 and a sanitizer they take hours.
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  target_compile_options(di_kernels PRIVATE -O2)
elseif(NOT CMAKE_CXX_FLAGS MATCHES "-O0")  # -O0: a build of which nothing is run
  target_compile_options(di_kernels PRIVATE -O3)
endif()

# The reference is the definition: a·b + c is two roundings there, whatever the processor has.
file(GLOB_RECURSE di_kernels_reference CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/cpu/ref/*.cc)
set_source_files_properties(${di_kernels_reference} PROPERTIES COMPILE_OPTIONS "-ffp-contract=off")

# One file per instruction set. They fuse multiply and add only where they say so. The two warnings come from inside g++ 12's
# own intrinsics (undefined vectors on purpose).
file(GLOB di_kernels_simd CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/cpu/simd/isa_*.cc)
set_source_files_properties(${di_kernels_simd} PROPERTIES
  COMPILE_OPTIONS "-ffp-contract=off;-Wno-uninitialized;-Wno-maybe-uninitialized")
# The tables of the wider sets are the templates of the AVX2 table again, and by far the most that a sanitized build compiles.
# Their loops run inside rows that one thread owns.
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=thread")
  set_property(SOURCE ${di_kernels_simd} APPEND PROPERTY COMPILE_OPTIONS -fno-sanitize=thread)
elseif(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  set(di_kernels_wide ${di_kernels_simd})
  list(FILTER di_kernels_wide EXCLUDE REGEX "isa_avx2\\.cc$")
  set_property(SOURCE ${di_kernels_wide} APPEND PROPERTY COMPILE_OPTIONS -O1 -fno-sanitize=undefined)
endif()

# The benchmark program; it loads its peers (OpenBLAS, BLIS, oneDNN) at run time.
add_executable(bench_kernels EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/bench/kernels/bench_kernels.cc)
target_link_libraries(bench_kernels PRIVATE di_kernels di_warnings ${CMAKE_DL_LIBS})
target_link_libraries(di_kernels PRIVATE ${CMAKE_DL_LIBS})

# The CUDA backend: nvcc for the kernels, the host compiler for the rest. Products and sums are fused only where the code
# says so, so that values match the reference.
if(DI_CUDA)
  file(GLOB di_cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/cuda/*.cu)
  add_library(di_kernels_cuda STATIC ${di_cuda_sources})
  target_include_directories(di_kernels_cuda PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_compile_options(di_kernels_cuda PRIVATE -O3 -fmad=false --expt-relaxed-constexpr -lineinfo -Werror=all-warnings)
  target_link_libraries(di_kernels PRIVATE di_kernels_cuda CUDA::cudart_static)
endif()
