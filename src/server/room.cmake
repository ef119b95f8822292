target_link_libraries(di_server PRIVATE Boost::headers OpenSSL::Crypto)
target_compile_definitions(di_server PRIVATE DI_VERSION="${PROJECT_VERSION}" BOOST_ASIO_NO_DEPRECATED)
