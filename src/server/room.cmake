target_link_libraries(di_server PRIVATE Boost::headers OpenSSL::SSL OpenSSL::Crypto ZLIB::ZLIB PkgConfig::ZSTD)
target_compile_definitions(di_server PRIVATE DI_VERSION="${PROJECT_VERSION}" BOOST_ASIO_NO_DEPRECATED)
if(CMAKE_CXX_FLAGS MATCHES "sanitize=thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Asio's fences beside its own locks are unknown to the sanitizer; the locks are what orders the handlers.
  target_compile_options(di_server PRIVATE -Wno-tsan)
endif()
# The web page travels inside the program.
file(GLOB web_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/server/web/*)
set(web_assets ${CMAKE_BINARY_DIR}/generated/web_assets.cc)
add_custom_command(OUTPUT ${web_assets}
  COMMAND ${CMAKE_COMMAND} -DFOLDER=${CMAKE_SOURCE_DIR}/src/server/web -DOUT=${web_assets} -P ${CMAKE_SOURCE_DIR}/cmake/Embed.cmake
  DEPENDS ${web_files} ${CMAKE_SOURCE_DIR}/cmake/Embed.cmake VERBATIM)
target_sources(di_server PRIVATE ${web_assets})
# The commit is in an object of its own, so that a new one compiles nothing else.
set(git_source ${CMAKE_BINARY_DIR}/generated/git.cc)
add_custom_target(di_git BYPRODUCTS ${git_source}
  COMMAND ${CMAKE_COMMAND} -DFOLDER=${CMAKE_SOURCE_DIR} -DOUT=${git_source} -P ${CMAKE_SOURCE_DIR}/cmake/Git.cmake VERBATIM)
target_sources(di_server PRIVATE ${git_source})
add_dependencies(di_server di_git)
