// Processor time of this process, for figures that other work on the machine must not disturb. Thread-safe.
#pragma once

#include <ctime>

namespace di {

// Seconds of user and system time of all threads so far.
inline double process_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace di
