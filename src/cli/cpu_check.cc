// Runs before everything else in the program, compiled for the oldest x86-64: on a processor without AVX2 the rest of
// the program would end with an illegal instruction, here it ends with a sentence.
#include <unistd.h>

namespace {

__attribute__((constructor(101))) void require_avx2() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) return;
  static constexpr char kMessage[] =
      "deepinfer: this processor has no AVX2 with FMA and BMI2 (x86-64-v3), the least that deepinfer runs on\n";
  [[maybe_unused]] const long n = write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
  _exit(4);
}

}  // namespace
