# The C interface as a shared library; nothing else of it is visible.
add_library(deepinfer_structured SHARED ${CMAKE_SOURCE_DIR}/src/structured/c_api/c_api.cc)
target_link_libraries(deepinfer_structured PRIVATE di_structured di_warnings)
target_link_options(deepinfer_structured PRIVATE -Wl,--exclude-libs,ALL)
set_target_properties(deepinfer_structured PROPERTIES CXX_VISIBILITY_PRESET hidden VERSION 1.0 SOVERSION 1
  PUBLIC_HEADER ${CMAKE_SOURCE_DIR}/src/structured/c_api/deepinfer_structured.h)
install(TARGETS deepinfer_structured LIBRARY DESTINATION lib PUBLIC_HEADER DESTINATION include COMPONENT structured)
