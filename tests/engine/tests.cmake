# The tests on the bundled model read its tokenizer.
target_link_libraries(engine_tests PRIVATE di_codec)
