target_link_libraries(di_base PUBLIC fmt::fmt Threads::Threads PkgConfig::XXHASH PRIVATE spdlog::spdlog simdjson::simdjson OpenSSL::Crypto prometheus-cpp::core)
