#include "kernels/cpu/bench/peers.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>

namespace di::kernels::cpu::bench {
namespace {

void* open_library(const std::vector<const char*>& names) {
  for (const char* name : names) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

template <class Function>
Function symbol(void* library, const char* name) {
  return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
}

using CblasSgemm = void (*)(int order, int ta, int tb, int m, int n, int k, float alpha, const float* a, int lda,
                            const float* b, int ldb, float beta, float* c, int ldc);
constexpr int kRowMajor = 101;
constexpr int kNoTranspose = 111;
constexpr int kTranspose = 112;

SgemmPeer cblas_peer(const char* name, CblasSgemm gemm) {
  return {name, [gemm](int64_t m, int64_t n, int64_t k, const float* x, const float* w, float* y) {
            const int ni = static_cast<int>(n);
            const int ki = static_cast<int>(k);
            gemm(kRowMajor, kNoTranspose, kTranspose, static_cast<int>(m), ni, ki, 1.F, x, ki, w, ki, 0.F, y, ni);
          }};
}

void* dnnl_library() {
  return open_library({"libdnnl.so.2", "libdnnl.so.3"});
}

}  // namespace

std::vector<SgemmPeer> sgemm_peers(int threads, bool avx512) {
  const std::string count = std::to_string(threads);
  // Read by the libraries when they are loaded. OpenBLAS 0.3.21 takes a virtual machine's core for an old one.
  setenv("OPENBLAS_CORETYPE", avx512 ? "SkylakeX" : "Haswell", 1);
  setenv("OPENBLAS_NUM_THREADS", count.c_str(), 1);
  setenv("BLIS_NUM_THREADS", count.c_str(), 1);
  setenv("OMP_NUM_THREADS", count.c_str(), 1);
  setenv("OMP_WAIT_POLICY", "passive", 1);
  std::vector<SgemmPeer> peers;
  if (auto gemm = symbol<CblasSgemm>(open_library({"libopenblas.so.0"}), "cblas_sgemm"))
    peers.push_back(cblas_peer("OpenBLAS", gemm));
  if (auto gemm = symbol<CblasSgemm>(open_library({"libblis.so.4"}), "cblas_sgemm"))
    peers.push_back(cblas_peer("BLIS", gemm));
  using DnnlSgemm = int (*)(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
                            const float* b, int64_t ldb, float beta, float* c, int64_t ldc);
  if (auto gemm = symbol<DnnlSgemm>(dnnl_library(), "dnnl_sgemm")) {
    peers.push_back({"oneDNN", [gemm](int64_t m, int64_t n, int64_t k, const float* x, const float* w, float* y) {
                       gemm('N', 'T', m, n, k, 1.F, x, k, w, k, 0.F, y, n);
                     }});
  }
  return peers;
}

// oneDNN's C interface, version 2. Descriptors are plain structs of at most a few kilobytes; only pointers to them are
// passed.
std::function<void()> dnnl_bf16_product(int64_t m, int64_t n, int64_t k, void* x, void* w, void* y) {
  void* library = open_library({"libdnnl.so.2"});
  struct Descriptor {
    alignas(64) std::array<char, 16384> bytes{};
  };
  struct Argument {
    int index;
    void* memory;
  };
  constexpr int kCpu = 1;
  constexpr int kBf16 = 2;
  constexpr int kF32 = 3;
  constexpr int kAb = 3;  // dnnl_format_tag_t: the plain and the transposed matrix
  constexpr int kBa = 22;
  const auto engine_create = symbol<int (*)(void**, int, size_t)>(library, "dnnl_engine_create");
  const auto stream_create = symbol<int (*)(void**, void*, unsigned)>(library, "dnnl_stream_create");
  const auto md_init = symbol<int (*)(void*, int, const int64_t*, int, int)>(library, "dnnl_memory_desc_init_by_tag");
  const auto matmul_init =
      symbol<int (*)(void*, const void*, const void*, const void*, const void*)>(library, "dnnl_matmul_desc_init");
  const auto pd_create =
      symbol<int (*)(void**, const void*, const void*, void*, const void*)>(library, "dnnl_primitive_desc_create");
  const auto primitive_create = symbol<int (*)(void**, const void*)>(library, "dnnl_primitive_create");
  const auto memory_create = symbol<int (*)(void**, const void*, void*, void*)>(library, "dnnl_memory_create");
  const auto execute = symbol<int (*)(const void*, void*, int, const Argument*)>(library, "dnnl_primitive_execute");
  const auto wait = symbol<int (*)(void*)>(library, "dnnl_stream_wait");
  if (engine_create == nullptr || stream_create == nullptr || md_init == nullptr || matmul_init == nullptr ||
      pd_create == nullptr || primitive_create == nullptr || memory_create == nullptr || execute == nullptr ||
      wait == nullptr) {
    return {};
  }
  void* engine = nullptr;
  void* stream = nullptr;
  void* pd = nullptr;
  void* primitive = nullptr;
  std::array<Argument, 3> arguments{{{1, nullptr}, {33, nullptr}, {17, nullptr}}};  // source, weights, destination
  Descriptor source;
  Descriptor weights;
  Descriptor destination;
  Descriptor matmul;
  const std::array<int64_t, 2> source_dims{m, k};
  const std::array<int64_t, 2> weight_dims{k, n};
  const std::array<int64_t, 2> destination_dims{m, n};
  const bool ok = engine_create(&engine, kCpu, 0) == 0 && stream_create(&stream, engine, 1) == 0 &&
                  md_init(source.bytes.data(), 2, source_dims.data(), kBf16, kAb) == 0 &&
                  md_init(weights.bytes.data(), 2, weight_dims.data(), kBf16, kBa) == 0 &&
                  md_init(destination.bytes.data(), 2, destination_dims.data(), kF32, kAb) == 0 &&
                  matmul_init(matmul.bytes.data(), source.bytes.data(), weights.bytes.data(), nullptr,
                              destination.bytes.data()) == 0 &&
                  pd_create(&pd, matmul.bytes.data(), nullptr, engine, nullptr) == 0 &&
                  primitive_create(&primitive, pd) == 0 &&
                  memory_create(&arguments[0].memory, source.bytes.data(), engine, x) == 0 &&
                  memory_create(&arguments[1].memory, weights.bytes.data(), engine, w) == 0 &&
                  memory_create(&arguments[2].memory, destination.bytes.data(), engine, y) == 0;
  if (!ok) return {};
  return [=] {
    execute(primitive, stream, 3, arguments.data());
    wait(stream);
  };
}

}  // namespace di::kernels::cpu::bench
