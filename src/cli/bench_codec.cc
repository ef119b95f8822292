// deepinfer bench codec: the codec's speed through its C++ interface.
#include <cstdio>

#include "cli/options.h"
#include "codec/bench/bench.h"

namespace di::cli {

int bench_codec(const BenchCodecOptions& options) {
  const auto done = codec::run_codec_bench({options.tokenizer, options.texts, options.repetitions});
  if (!done) std::fprintf(stderr, "deepinfer: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}

}  // namespace di::cli
