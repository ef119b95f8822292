target_link_libraries(di_codec PRIVATE simdjson::simdjson PkgConfig::UTF8PROC)
