# The Engram map of a checkpoint comes from its tokenizer.
target_link_libraries(model_tests PRIVATE di_codec)
