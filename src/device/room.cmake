if(DI_CUDA)
  # Static: the program starts on machines without a driver and says so when a device is asked for.
  target_link_libraries(di_device PRIVATE CUDA::cudart_static)
endif()
