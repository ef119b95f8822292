// bench_codec TOKENIZER TEXTS [REPETITIONS]: deepinfer bench codec as a program that needs nothing but the codec.
#include <cstdio>
#include <cstdlib>

#include "codec/bench/bench.h"

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("usage: bench_codec TOKENIZER TEXTS [REPETITIONS]\n", stderr);
    return 2;
  }
  di::codec::BenchOptions options{argv[1], argv[2]};
  if (argc > 3) options.repetitions = std::atoi(argv[3]);
  const auto done = di::codec::run_codec_bench(options);
  if (!done) std::fprintf(stderr, "bench_codec: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
