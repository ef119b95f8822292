# PCRE2 is the oracle of the pre-tokenizer; the product does not use it.
target_link_libraries(codec_tests PRIVATE PkgConfig::PCRE2)
di_c_api_check(codec)
