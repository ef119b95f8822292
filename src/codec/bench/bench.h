// Speed of the codec through its C++ interface, in processor time of this thread (and, for two threads, wall time).
#pragma once

#include <string>

#include "base/result.h"

namespace di::codec {

struct BenchOptions {
  std::string tokenizer;  // tokenizer.json or its folder
  std::string texts;      // folder of bench/codec/texts.py: *.txt, chat.json, agent.json
  int repetitions = 5;    // the best counts
};

// Prints a table to standard output.
Result<void> run_codec_bench(const BenchOptions& options);

}  // namespace di::codec
