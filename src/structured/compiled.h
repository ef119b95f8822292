// Inside of a compiled constraint: the lazily built automaton and the lock over it.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "structured/budget.h"
#include "structured/grammar/parser.h"
#include "structured/structured.h"

namespace di::structured {

class CompiledImpl {
 public:
  CompiledImpl(VocabularyRef v, const Limits& l) : vocabulary(std::move(v)), limits(l), arena(budget) {}

  // A piece of decoding work has limits of its own: what one ran into need not end the next.
  void begin_work() {
    budget.restart_clock(limits.mask_cpu_ms);
    parser->clear_failure();
  }

  VocabularyRef vocabulary;
  Limits limits;
  Budget budget;
  Arena arena;
  Grammar grammar;
  std::vector<std::string> warnings;
  std::unique_ptr<Parser> parser;  // made when the grammar is complete
  // Guards budget, arena and parser from the moment the constraint is published.
  std::mutex mutex;
};

}  // namespace di::structured
