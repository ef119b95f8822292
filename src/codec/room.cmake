target_link_libraries(di_codec PRIVATE simdjson::simdjson PkgConfig::UTF8PROC
  JPEG::JPEG PNG::PNG GIF::GIF PkgConfig::WEBP PkgConfig::WEBPDEMUX)
# Resizing must round after every operation (vision.md §3.3).
set_source_files_properties(${CMAKE_SOURCE_DIR}/src/codec/image/resize.cc PROPERTIES COMPILE_OPTIONS -ffp-contract=off)
add_executable(bench_codec EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/bench/codec/bench_codec.cc)
target_link_libraries(bench_codec PRIVATE di_codec di_warnings)
