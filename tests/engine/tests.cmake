# The tests on the bundled model read its tokenizer; models run on the CPU operators.
target_link_libraries(engine_tests PRIVATE di_codec di_kernels)
