// bench_kernels_cuda [FILTER]: the CUDA operators at the shapes of performance.md §3, by its §7: inputs rotate over
// sets of more than 200 MB together, data are random, a graph of at least 8 ms is replayed seven times, outputs are
// poisoned and looked at before, and the ceilings come from the same run. The peers of a matrix product, in the same
// run with rotating weights too: cuBLAS in bf16, and cuBLASLt in FP8 with one scale per tensor and fast accumulation
// (less exact than ours: a limit rather than an equal). Programs of other projects (DeepGEMM, FlashMLA, Marlin) are not
// installed by this repository; performance.md §3 has their figures on the same device.
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "ceilings.h"
#include "kernels/cuda/cuda.h"

namespace {

using namespace di;
using namespace di::kernels;
using bench::Fill;

constexpr int64_t kRotated = int64_t{220} << 20;
constexpr double kGraphMs = 8.0;

void must(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "bench_kernels_cuda: %s\n", cudaGetErrorString(status));
  std::exit(1);
}

struct Context {
  cuda::StreamPtr stream;
  cublasHandle_t blas = nullptr;
  cublasLtHandle_t blas_lt = nullptr;
  std::vector<void*> blocks;
  uint64_t seed = 1;
  double read_gbs = 0;
  double bf16_tflops = 0;
  double fp8_tflops = 0;
  std::string filter;

  cudaStream_t handle() { return static_cast<cudaStream_t>(cuda::device_stream(*stream).handle()); }
  uint8_t* take(int64_t bytes, Fill fill) {
    void* data = nullptr;
    must(cudaMalloc(&data, static_cast<size_t>(bytes + 256)));
    blocks.push_back(data);
    bench::launch_fill(data, (bytes + 3) / 4 * 4, fill, seed++, handle());
    return static_cast<uint8_t*>(data);
  }
  template <class T>
  T* upload(const std::vector<T>& values) {
    auto* data = reinterpret_cast<T*>(take(static_cast<int64_t>(values.size() * sizeof(T)), Fill::kRandom));
    cuda::ops().copy_in(data, values.data(), static_cast<int64_t>(values.size() * sizeof(T)), *stream);
    return data;
  }
  Tensor tensor(int64_t rows, int64_t cols, DType dtype) {
    void* data = take(rows * cols * size_of(dtype), dtype == DType::kF32 ? Fill::kF32 : Fill::kBf16);
    return {data, dtype, rows, cols, cols};
  }
  Weight weight(WeightFormat format, int64_t rows, int64_t cols) {
    Weight w{nullptr, nullptr, format, 32, rows, cols};
    const int64_t n = rows * cols;
    if (format == WeightFormat::kBf16) {
      w.data = take(n * 2, Fill::kBf16);
    } else if (format == WeightFormat::kF32) {
      w.data = take(n * 4, Fill::kF32);
    } else {
      w.data = take(format == WeightFormat::kFp4Row ? n / 2 : n,
                    format == WeightFormat::kFp4Row ? Fill::kRandom : Fill::kE4m3);
      w.scale =
          take(format == WeightFormat::kFp8Block ? (rows + 31) / 32 * (cols / 32) : rows * (cols / 32), Fill::kScale);
    }
    return w;
  }
  void free_all() {
    must(cudaStreamSynchronize(handle()));
    for (void* block : blocks) must(cudaFree(block));
    blocks.clear();
  }
};

int64_t bytes_of(const Weight& w) {
  const int64_t n = w.rows * w.cols;
  switch (w.format) {
    case WeightFormat::kF32:
      return n * 4;
    case WeightFormat::kBf16:
      return n * 2;
    case WeightFormat::kFp8Block:
      return n + n / 1024;
    case WeightFormat::kFp8Row:
      return n + n / 32;
    case WeightFormat::kFp4Row:
      return n / 2 + n / 32;
  }
  return 0;
}

struct Timing {
  double median_us = 0;
  double min_us = 0;
  double max_us = 0;
  int64_t nodes = 0;
};

// Time of one call: `submit(set)` for set 0, 1, … in a graph.
Timing measure(Context& c, int64_t sets, const std::function<void(int64_t)>& submit) {
  device::cuda::Stream& stream = cuda::device_stream(*c.stream);
  auto begin = device::cuda::Event::create(true);
  auto end = device::cuda::Event::create(true);
  DI_CHECK(begin.has_value() && end.has_value(), "events");
  const auto timed = [&](const std::function<void()>& work) {
    DI_CHECK(begin->record(stream).has_value(), "event");
    work();
    DI_CHECK(end->record(stream).has_value() && end->wait().has_value(), "event");
    return static_cast<double>(*end->milliseconds_since(*begin));
  };
  for (int64_t s = 0; s < sets; ++s) submit(s);  // scratch grows, modules load
  const double once = timed([&] {
                        for (int64_t s = 0; s < sets; ++s) submit(s);
                      }) /
                      static_cast<double>(sets);
  const auto calls =
      std::clamp<int64_t>(static_cast<int64_t>(std::ceil(kGraphMs * 1.2 / std::max(once, 1e-3))), sets, 20000);
  auto graph = device::cuda::Graph::capture(stream, [&] {
    for (int64_t i = 0; i < calls; ++i) submit(i % sets);
  });
  DI_CHECK(graph.has_value(), "{}", graph.error().message);
  DI_CHECK(graph->replay(stream).has_value(), "replay");
  std::vector<double> us;
  for (int i = 0; i < 7; ++i) {
    us.push_back(timed([&] { DI_CHECK(graph->replay(stream).has_value(), "replay"); }) * 1e3 /
                 static_cast<double>(calls));
  }
  std::sort(us.begin(), us.end());
  return {us[3], us.front(), us.back(), graph->nodes()};
}

// Every 4-byte word of the output must have been written.
bool writes_all(Context& c, const Tensor& out, const std::function<void()>& submit) {
  const auto bytes = static_cast<size_t>(out.rows * out.cols * size_of(out.dtype));
  must(cudaMemsetAsync(out.data, 0xa7, bytes, c.handle()));
  submit();
  std::vector<uint32_t> words(bytes / 4);
  cuda::ops().copy_out(words.data(), out.data, static_cast<int64_t>(bytes), *c.stream);
  return std::count(words.begin(), words.end(), 0xa7a7a7a7U) == 0;
}

struct Work {
  double bytes;      // that must move
  double flops;      // on the matrix units
  bool fp8 = false;  // of FP8 or MXFP4 weights: the FP8 rate bounds it
};

struct Peers {
  double bf16_us = 0;  // 0: none
  double fp8_us = 0;
};

void report(Context& c, const std::string& name, const Timing& t, const Work& work, bool written, const Peers& peers) {
  const double rate = work.fp8 ? c.fp8_tflops : c.bf16_tflops;
  const double limit = std::max(work.bytes / (c.read_gbs * 1e3), work.flops / (rate * 1e6));
  std::printf("%-36s %9.1f us [%.1f, %.1f]  %7.0f GB/s %6.0f TF  limit %8.1f us  frac %.2f  %s", name.c_str(),
              t.median_us, t.min_us, t.max_us, work.bytes / t.median_us * 1e-3, work.flops / t.median_us * 1e-6, limit,
              limit / t.median_us, written ? "written" : "NOT WRITTEN");
  if (peers.bf16_us > 0) std::printf("  cublas bf16 %.1f us, ratio %.2f", peers.bf16_us, t.median_us / peers.bf16_us);
  if (peers.fp8_us > 0) std::printf("  cublasLt fp8 %.1f us, ratio %.2f", peers.fp8_us, t.median_us / peers.fp8_us);
  std::printf("\n");
  std::fflush(stdout);
}

bool wanted(const Context& c, const std::string& name) {
  return c.filter.empty() || name.find(c.filter) != std::string::npos;
}

int64_t sets_for(int64_t bytes) {
  return std::clamp<int64_t>((kRotated + bytes - 1) / bytes, 1, 64);
}

double blas_us(Context& c, int64_t m, int64_t n, int64_t k) {
  const int64_t sets = sets_for(n * k * 2);
  std::vector<const void*> w;
  for (int64_t s = 0; s < sets; ++s) w.push_back(c.take(n * k * 2, Fill::kBf16));
  void* x = c.take(m * k * 2, Fill::kBf16);
  void* y = c.take(m * n * 2, Fill::kBf16);
  const float one = 1.F;
  const float zero = 0.F;
  return measure(c, sets,
                 [&](int64_t s) {
                   const cublasStatus_t status =
                       cublasGemmEx(c.blas, CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(n), static_cast<int>(m),
                                    static_cast<int>(k), &one, w[static_cast<size_t>(s)], CUDA_R_16BF,
                                    static_cast<int>(k), x, CUDA_R_16BF, static_cast<int>(k), &zero, y, CUDA_R_16BF,
                                    static_cast<int>(n), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
                   DI_CHECK(status == CUBLAS_STATUS_SUCCESS, "cublas {}", static_cast<int>(status));
                 })
      .median_us;
}

// 0 where the library has no such product (few rows).
double blas_lt_us(Context& c, int64_t m, int64_t n, int64_t k) {
  const auto ok = [](cublasStatus_t status) {
    DI_CHECK(status == CUBLAS_STATUS_SUCCESS, "cublasLt {}", static_cast<int>(status));
  };
  cublasLtMatmulDesc_t operation = nullptr;
  ok(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t transpose = CUBLAS_OP_T;
  const int8_t fast = 1;
  ok(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose));
  ok(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast));
  const float* scale = c.upload(std::vector<float>{.25F});
  ok(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scale, sizeof scale));
  ok(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &scale, sizeof scale));
  cublasLtMatrixLayout_t weights = nullptr;
  cublasLtMatrixLayout_t rows = nullptr;
  cublasLtMatrixLayout_t out = nullptr;
  ok(cublasLtMatrixLayoutCreate(&weights, CUDA_R_8F_E4M3, static_cast<uint64_t>(k), static_cast<uint64_t>(n), k));
  ok(cublasLtMatrixLayoutCreate(&rows, CUDA_R_8F_E4M3, static_cast<uint64_t>(k), static_cast<uint64_t>(m), k));
  ok(cublasLtMatrixLayoutCreate(&out, CUDA_R_16BF, static_cast<uint64_t>(n), static_cast<uint64_t>(m), n));
  constexpr size_t kWorkspace = size_t{64} << 20;
  void* workspace = c.take(int64_t{kWorkspace}, Fill::kRandom);
  cublasLtMatmulPreference_t preference = nullptr;
  ok(cublasLtMatmulPreferenceCreate(&preference));
  ok(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace,
                                          sizeof kWorkspace));
  cublasLtMatmulHeuristicResult_t choice{};
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(c.blas_lt, operation, weights, rows, out, out, preference, 1, &choice, &found);
  double us = 0;
  if (status == CUBLAS_STATUS_SUCCESS && found > 0) {
    const int64_t sets = sets_for(n * k);
    std::vector<const void*> w;
    for (int64_t s = 0; s < sets; ++s) w.push_back(c.take(n * k, Fill::kE4m3));
    void* x = c.take(m * k, Fill::kE4m3);
    void* y = c.take(m * n * 2, Fill::kBf16);
    const float one = 1.F;
    const float zero = 0.F;
    us = measure(c, sets, [&](int64_t s) {
           ok(cublasLtMatmul(c.blas_lt, operation, &one, w[static_cast<size_t>(s)], weights, x, rows, &zero, y, out, y,
                             out, &choice.algo, workspace, kWorkspace, c.handle()));
         }).median_us;
  }
  cublasLtMatmulPreferenceDestroy(preference);
  cublasLtMatrixLayoutDestroy(out);
  cublasLtMatrixLayoutDestroy(rows);
  cublasLtMatrixLayoutDestroy(weights);
  cublasLtMatmulDescDestroy(operation);
  return us;
}

constexpr Numerics kTrained{true, true, 32};

void bench_linear(Context& c, const char* name, WeightFormat format, int64_t n, int64_t k, int64_t groups) {
  for (const int64_t m : {1, 8, 64, 256, 4096}) {
    const std::string label = fmt::format("{} {}x{} M{}", name, n, k, m);
    if (!wanted(c, label)) continue;
    std::vector<Weight> w;
    const int64_t sets = sets_for(bytes_of({nullptr, nullptr, format, 32, n, k}));
    for (int64_t s = 0; s < sets; ++s) w.push_back(c.weight(format, n, k));
    const Tensor x = c.tensor(m, k * groups, DType::kBf16);
    const Tensor y = c.tensor(m, n, DType::kBf16);
    const auto submit = [&](int64_t s) {
      const Weight& weight = w[static_cast<size_t>(s)];
      if (groups > 1) {
        cuda::ops().grouped_linear({x, weight, static_cast<int32_t>(groups), kTrained, y}, *c.stream);
      } else {
        cuda::ops().linear({x, weight, kTrained, false, y}, *c.stream);
      }
    };
    const bool written = writes_all(c, y, [&] { submit(0); });
    const Timing t = measure(c, sets, submit);
    const double bytes = static_cast<double>(bytes_of(w[0]) + m * (k * groups + n) * 2);
    Peers peers;
    if (groups == 1) peers.bf16_us = blas_us(c, m, n, k);
    if (groups == 1 && format != WeightFormat::kBf16) peers.fp8_us = blas_lt_us(c, m, n, k);
    const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    report(c, label, t, {bytes, flops, format != WeightFormat::kBf16}, written, peers);
    c.free_all();
  }
}

void bench_moe(Context& c) {
  constexpr int32_t kExperts = 48;  // one of eight ranks
  constexpr int64_t kWidth = 5120;
  constexpr int64_t kInner = 2304;
  for (const int64_t rows : {8, 64, 256, 1024, 4096}) {  // pairs that reach this rank: 6/8 of the tokens times six
    const std::string label = fmt::format("moe 48 experts T{}", rows);
    if (!wanted(c, label)) continue;
    std::vector<ExpertWeights> experts;
    for (int e = 0; e < kExperts; ++e) {
      experts.push_back({c.weight(WeightFormat::kFp4Row, kInner, kWidth),
                         c.weight(WeightFormat::kFp4Row, kInner, kWidth),
                         c.weight(WeightFormat::kFp4Row, kWidth, kInner)});
    }
    const ExpertForm form = form_of(experts.data(), kExperts);
    const ExpertWeights* table = c.upload(experts);
    std::vector<int32_t> ids;
    std::vector<bool> hit(kExperts);
    for (int64_t i = 0; i < rows * 6; ++i) {
      ids.push_back(static_cast<int32_t>((i * 7 + i / 6 * 11) % kExperts));
      hit[static_cast<size_t>(ids.back())] = true;
    }
    const int32_t* d_ids = c.upload(ids);
    const float* weights = c.upload(std::vector<float>(ids.size(), .25F));
    const Tensor y = c.tensor(rows, kWidth, DType::kBf16);
    const Tensor out = c.tensor(rows, kWidth, DType::kBf16);
    const auto submit = [&](int64_t) {
      cuda::ops().moe({y, d_ids, weights, 6, table, kExperts, form, {}, 10.F, kTrained, out}, *c.stream);
    };
    const bool written = writes_all(c, out, [&] { submit(0); });
    const Timing t = measure(c, 1, submit);  // the experts' 850 MB rotate by themselves
    const auto active = static_cast<double>(std::count(hit.begin(), hit.end(), true));
    const double expert = static_cast<double>(bytes_of(experts[0].w1) * 3);
    report(c, label, t, {active * expert, 6.0 * static_cast<double>(rows * 6 * kWidth * kInner), true}, written, {});
    c.free_all();
  }
}

void bench_attention(Context& c) {
  constexpr int64_t kD = 512;
  constexpr int32_t kHeads = 64;
  constexpr int32_t kTopk = 512;
  constexpr int32_t kContext = 8192;
  for (const int32_t rows : {1, 64, 256, 1536}) {
    const std::string label = fmt::format("attention 64 heads 640 keys rows {}", rows);
    if (!wanted(c, label)) continue;
    const int32_t sequences = std::min(rows, 256);
    const int32_t blocks = kContext / 128;
    RingView ring{nullptr, 134 * 528 + 48, 134, kD, KvFormat::kE4m3Ue8m0};
    ring.base = c.take(ring.slot_stride * sequences, Fill::kE4m3);
    PageView pages{nullptr, 128 * 288, 128, kD, KvFormat::kE2m1E4m3, false};
    pages.base = c.take(pages.block_stride * blocks * sequences, Fill::kE4m3);
    std::vector<int32_t> positions, sequence, begin, end, slot, table, chosen;
    for (int32_t t = 0; t < rows; ++t) {
      positions.push_back(kContext - 1);
      sequence.push_back(t % sequences);
      begin.push_back(kContext - 128);
      end.push_back(kContext);
      for (int32_t i = 0; i < kTopk; ++i) chosen.push_back(i * 16 + (t * 7 + i) % 16);
    }
    for (int32_t s = 0; s < sequences; ++s) {
      slot.push_back(s);
      for (int32_t b = 0; b < blocks; ++b) table.push_back(s * blocks + b);
    }
    Rows r{rows,    c.upload(positions), c.upload(sequence), c.upload(begin), c.upload(end),
           nullptr, c.upload(slot),      c.upload(table),    blocks};
    const float* sink = c.upload(std::vector<float>(kHeads, 0.F));
    const float* rope = c.upload(std::vector<float>(static_cast<size_t>(rows) * 64, .7F));
    const int32_t* selection = c.upload(chosen);
    const Tensor q = c.tensor(rows, kHeads * kD, DType::kBf16);
    const Tensor o = c.tensor(rows, kHeads * kD, DType::kBf16);
    const AttentionArgs a{q,    kHeads, 1.F / std::sqrt(512.F), sink, rope, 64, r, {}, ring, 1, pages, selection, kTopk,
                          true, o};
    const auto submit = [&](int64_t) { cuda::ops().attention(a, *c.stream); };
    const bool written = writes_all(c, o, [&] { submit(0); });
    const Timing t = measure(c, 1, submit);
    const double n = rows;
    report(c, label, t, {n * (128 * 528 + 512 * 288 + 2 * kHeads * kD * 2), n * 4.0 * kHeads * 640 * kD}, written, {});
    c.free_all();
  }
}

void bench_select(Context& c) {
  constexpr int32_t kHeads = 32;
  for (const int32_t keys : {8192, 65536, 131072}) {
    const std::string label = fmt::format("select 64 rows {} keys", keys);
    if (!wanted(c, label)) continue;
    const int32_t rows = 64;
    const int32_t blocks = keys / 128;
    PageView pages{nullptr, 128 * 68, 128, 128, KvFormat::kE2m1Ue8m0, true};
    pages.base = c.take(pages.block_stride * blocks * rows, Fill::kE4m3);
    std::vector<int32_t> positions(rows, keys - 1), sequence, table;
    for (int32_t t = 0; t < rows; ++t) sequence.push_back(t);
    for (int32_t b = 0; b < blocks * rows; ++b) table.push_back(b);
    Rows r{};
    r.n = rows;
    r.positions = c.upload(positions);
    r.sequence = c.upload(sequence);
    r.block_table = c.upload(table);
    r.block_table_stride = blocks;
    const Tensor q = c.tensor(rows, kHeads * 128, DType::kBf16);
    const Tensor w = c.tensor(rows, kHeads, DType::kBf16);
    auto* selection = reinterpret_cast<int32_t*>(c.take(rows * 512 * 4, Fill::kRandom));
    const SelectArgs a{q, w, .0156F, kHeads, 1, 512, r, pages, 8, 2048, nullptr, nullptr, selection, nullptr, 0};
    const auto submit = [&](int64_t) { cuda::ops().select(a, *c.stream); };
    const bool written = writes_all(c, {selection, DType::kF32, rows, 512, 512}, [&] { submit(0); });
    const Timing t = measure(c, 1, submit);
    const double n = static_cast<double>(rows) * keys;
    report(c, label, t, {n * 68, n * 2.0 * kHeads * 128}, written, {});
    c.free_all();
  }
}

void bench_streams(Context& c) {
  constexpr int64_t kH = 5120;
  for (const int64_t m : {1, 64, 4096, 32768}) {
    const Weight norm = c.weight(WeightFormat::kBf16, 1, kH);
    const int64_t sets = sets_for(m * kH * 8);
    const auto rows = [&](int64_t cols) {
      std::vector<Tensor> out;
      for (int64_t s = 0; s < sets; ++s) out.push_back(c.tensor(m, cols, DType::kBf16));
      return out;
    };
    const std::vector<Tensor> x = rows(4 * kH);
    const std::vector<Tensor> y = rows(kH);
    const float* fn = reinterpret_cast<const float*>(c.take(24 * 4 * kH * 4, Fill::kF32));
    const float* base = c.upload(std::vector<float>(24, .1F));
    auto* pre = reinterpret_cast<float*>(c.take(m * 4 * 4, Fill::kF32));
    auto* post = reinterpret_cast<float*>(c.take(m * 4 * 4, Fill::kF32));
    auto* comb = reinterpret_cast<float*>(c.take(m * 16 * 4, Fill::kF32));
    const auto one = [&](const char* name, double bytes, const std::function<void(int64_t)>& submit,
                         const Tensor& out) {
      const std::string label = fmt::format("{} M{}", name, m);
      if (!wanted(c, label)) return;
      const bool written = writes_all(c, out, [&] { submit(0); });
      report(c, label, measure(c, sets, submit), {bytes, 0}, written, {});
    };
    const double row = static_cast<double>(m * kH * 2);
    const auto at = [](const std::vector<Tensor>& v, int64_t s) { return v[static_cast<size_t>(s)]; };
    one(
        "rms_norm", 2 * row, [&](int64_t s) { cuda::ops().rms_norm({at(y, s), norm, 1e-20F, at(y, s)}, *c.stream); },
        Tensor{pre, DType::kF32, 0, 0, 0});
    one(
        "hc_pre", 5 * row,
        [&](int64_t s) {
          cuda::ops().hc_pre(
              {at(x, s), pre, false, 4, 20, 1e-6F, 1e-20F, fn, base, base, norm, true, at(y, s), pre, post, comb},
              *c.stream);
        },
        y[0]);
    one(
        "hc_post", 9 * row, [&](int64_t s) { cuda::ops().hc_post({at(x, s), at(y, s), post, comb, 4}, *c.stream); },
        Tensor{pre, DType::kF32, 0, 0, 0});
    c.free_all();
  }
}

void measure_ceilings(Context& c) {
  constexpr int64_t kBytes = int64_t{2} << 30;
  uint8_t* from = c.take(kBytes, Fill::kRandom);
  uint8_t* to = c.take(kBytes, Fill::kRandom);
  const Timing read =
      measure(c, 1, [&](int64_t) { bench::launch_read(from, kBytes, reinterpret_cast<uint32_t*>(to), c.handle()); });
  const Timing copy =
      measure(c, 1, [&](int64_t) { must(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice, c.handle())); });
  c.read_gbs = static_cast<double>(kBytes) / read.median_us * 1e-3;
  c.free_all();
  c.bf16_tflops = 2.0 * 8192. * 8192. * 8192. / blas_us(c, 8192, 8192, 8192) * 1e-6;
  c.free_all();
  const double fp8_us = blas_lt_us(c, 8192, 8192, 8192);
  c.free_all();
  c.fp8_tflops = fp8_us > 0 ? 2.0 * 8192. * 8192. * 8192. / fp8_us * 1e-6 : 2 * c.bf16_tflops;
  std::printf(
      "ceilings: read %.0f GB/s, copy %.0f GB/s (read and written), bf16 %.0f TFLOP/s (cuBLAS), fp8 %.0f TFLOP/s "
      "(cuBLASLt, one scale a tensor), 8192 cubed\n",
      c.read_gbs, 2.0 * static_cast<double>(kBytes) / copy.median_us * 1e-3, c.bf16_tflops, c.fp8_tflops);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  Context c;
  if (argc > 1) c.filter = argv[1];
  auto stream = cuda::make_stream(0);
  if (!stream) {
    std::fprintf(stderr, "bench_kernels_cuda: skipped: %s\n", stream.error().message.c_str());
    return 77;
  }
  c.stream = std::move(*stream);
  const auto info = device::cuda::describe(0);
  std::printf("device: %s, %d multiprocessors, %lld bytes\n", info->name.c_str(), info->multiprocessors,
              static_cast<long long>(info->memory_bytes));
  DI_CHECK(cublasCreate(&c.blas) == CUBLAS_STATUS_SUCCESS &&
               cublasSetStream(c.blas, c.handle()) == CUBLAS_STATUS_SUCCESS &&
               cublasLtCreate(&c.blas_lt) == CUBLAS_STATUS_SUCCESS,
           "cublas");
  measure_ceilings(c);
  bench_linear(c, "wq_a+wkv fp8", WeightFormat::kFp8Block, 1792, 5120, 1);
  bench_linear(c, "wq_b fp8", WeightFormat::kFp8Block, 32768, 1280, 1);
  bench_linear(c, "wo_a fp8 8 groups", WeightFormat::kFp8Block, 8192, 4096, 8);
  bench_linear(c, "wo_b fp8", WeightFormat::kFp8Block, 5120, 8192, 1);
  bench_linear(c, "shared up+gate fp8", WeightFormat::kFp8Block, 4608, 5120, 1);
  bench_linear(c, "shared down fp8", WeightFormat::kFp8Block, 5120, 2304, 1);
  bench_linear(c, "router bf16", WeightFormat::kBf16, 384, 5120, 1);
  bench_linear(c, "engram wkv fp8", WeightFormat::kFp8Block, 25600, 6144, 1);
  bench_linear(c, "lm_head bf16", WeightFormat::kBf16, 129280, 5120, 1);
  bench_moe(c);
  bench_attention(c);
  bench_select(c);
  bench_streams(c);
  cublasLtDestroy(c.blas_lt);
  cublasDestroy(c.blas);
  return 0;
}
