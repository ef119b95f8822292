// Other libraries as competitors, where the machine has them: OpenBLAS, BLIS and oneDNN, loaded at run time. None of
// them is linked; a missing one is left out of the table.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace di::kernels::cpu::bench {

// y[m, n] = x[m, k]·w[n, k]ᵀ, fp32 row-major.
struct SgemmPeer {
  std::string name;
  std::function<void(int64_t m, int64_t n, int64_t k, const float* x, const float* w, float* y)> run;
};
std::vector<SgemmPeer> sgemm_peers(int threads, bool avx512);

// The same product prepared for bf16 operands and an fp32 result; empty when oneDNN is absent or refuses.
std::function<void()> dnnl_bf16_product(int64_t m, int64_t n, int64_t k, void* x, void* w, void* y);

}  // namespace di::kernels::cpu::bench
