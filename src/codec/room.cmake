target_link_libraries(di_codec PRIVATE simdjson::simdjson PkgConfig::UTF8PROC
  JPEG::JPEG PNG::PNG GIF::GIF PkgConfig::WEBP PkgConfig::WEBPDEMUX)
# Resizing must round after every operation (vision.md §3.3).
set_source_files_properties(${CMAKE_SOURCE_DIR}/src/codec/image/resize.cc PROPERTIES COMPILE_OPTIONS -ffp-contract=off)
add_executable(bench_codec EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/bench/codec/bench_codec.cc)
target_link_libraries(bench_codec PRIVATE di_codec di_warnings)
# The C interface as a shared library; nothing else of it is visible.
add_library(deepinfer_codec SHARED ${CMAKE_SOURCE_DIR}/src/codec/c_api/c_api.cc)
target_link_libraries(deepinfer_codec PRIVATE di_codec di_warnings)
target_link_options(deepinfer_codec PRIVATE -Wl,--exclude-libs,ALL)
set_target_properties(deepinfer_codec PROPERTIES CXX_VISIBILITY_PRESET hidden VERSION 1.0 SOVERSION 1
  PUBLIC_HEADER ${CMAKE_SOURCE_DIR}/src/codec/c_api/deepinfer_codec.h)
install(TARGETS deepinfer_codec LIBRARY DESTINATION lib PUBLIC_HEADER DESTINATION include COMPONENT codec)
