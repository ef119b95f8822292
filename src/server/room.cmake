target_link_libraries(di_server PRIVATE Boost::headers OpenSSL::Crypto)
target_compile_definitions(di_server PRIVATE DI_VERSION="${PROJECT_VERSION}" BOOST_ASIO_NO_DEPRECATED)
if(CMAKE_CXX_FLAGS MATCHES "sanitize=thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Asio's fences beside its own locks are unknown to the sanitizer; the locks are what orders the handlers.
  target_compile_options(di_server PRIVATE -Wno-tsan)
endif()
