// What the terminal can show, and Ctrl-C while an answer runs.
#pragma once

#include <atomic>

namespace di::cli {

struct Terminal {
  bool interactive = false;  // questions are typed and answers read by a person
  const char* dim = "";
  const char* plain = "";
  // Colours only on a terminal and without NO_COLOR.
  static Terminal detect();
};

// Set by SIGINT once catch_interrupts() was called.
std::atomic<bool>& interrupt_flag();
void catch_interrupts();

}  // namespace di::cli
