target_link_libraries(di_model PRIVATE PkgConfig::UTF8PROC)
