// The largest of many keys, exactly, by one block of kTopThreads threads: the key of the last one that is kept is found
// digit by digit, then the kept ones are written in order.
#pragma once

#include "kernels/cuda/common/block.cuh"

namespace di::kernels::cuda {

inline constexpr int kTopThreads = 1024;
inline constexpr int kGroup = 16;  // competitors with a common maximum

inline constexpr int kTopWarps = kTopThreads / 32;
inline constexpr int kDigits = 2048;
inline constexpr int64_t kDirect = int64_t{kTopThreads} * kGroup;  // so many competitors are held in registers

struct TopShared {
  int histogram[kDigits];
  int warp_total[2][kTopWarps];
  int digit;
  int above;
  int at;
  int32_t group[kTopThreads];  // groups with competitors that may be among the best, ascending
};

// The sum of v over the threads before this one, and over all in `total`. `slot` alternates between neighbouring calls:
// one barrier is enough.
__device__ __forceinline__ int block_scan(int v, int slot, TopShared& s, int& total) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  int upto = v;
  for (int d = 1; d < 32; d *= 2) {
    const int other = shuffle(upto, lane >= d ? lane - d : lane);
    if (lane >= d) upto += other;
  }
  if (lane == 31) s.warp_total[slot][warp] = upto;
  __syncthreads();
  int warps = s.warp_total[slot][lane];
  for (int d = 1; d < 32; d *= 2) {
    const int other = shuffle(warps, lane >= d ? lane - d : lane);
    if (lane >= d) warps += other;
  }
  total = shuffle(warps, 31);
  const int before = shuffle(warps, warp > 0 ? warp - 1 : 0);
  return (warp > 0 ? before : 0) + upto - v;
}

// What is kept: keys above the threshold, and the first `tied` that equal it.
struct Threshold {
  uint32_t key;
  int tied;
};

// The threshold for the `keep` largest of the keys other than 0, from their upper `bits` (11, 22 or 32): with fewer
// than 32 bits, a lower bound. for_each(f) calls f with each key of the calling thread.
template <class ForEach>
__device__ __forceinline__ Threshold find_threshold(int keep, int bits, const ForEach& for_each, TopShared& s) {
  const int tid = static_cast<int>(threadIdx.x);
  uint32_t prefix = 0;
  uint32_t mask = 0;
  int wanted = keep;
  for (int pass = 0; pass < (bits + 10) / 11; ++pass) {
    const int shift = pass == 0 ? 21 : pass == 1 ? 10 : 0;
    const uint32_t range = pass == 2 ? 1023U : 2047U;
    __syncthreads();
    for (int i = tid; i < kDigits; i += kTopThreads) s.histogram[i] = 0;
    __syncthreads();
    for_each([&](uint32_t k) {
      if (k != 0 && (k & mask) == prefix) atomicAdd(&s.histogram[k >> shift & range], 1);
    });
    __syncthreads();
    // The largest digits belong to the first threads, two each.
    const int high = s.histogram[kDigits - 1 - 2 * tid];
    const int low = s.histogram[kDigits - 2 - 2 * tid];
    int total = 0;
    const int above = block_scan(high + low, pass % 2, s, total);
    if (total <= wanted && pass == 0) return {0, 0};  // not more than are kept
    if (above < wanted && wanted <= above + high + low) {
      const bool upper = wanted <= above + high;
      s.digit = kDigits - (upper ? 1 : 2) - 2 * tid;
      s.above = upper ? above : above + high;
      s.at = upper ? high : low;
    }
    __syncthreads();
    wanted -= s.above;
    prefix |= static_cast<uint32_t>(s.digit) << shift;
    mask |= range << shift;
    if (s.at == wanted && prefix != 0) return {prefix - 1, 0};  // all with these digits
  }
  return {prefix, wanted};
}

// Competitors of one thread that follow one another, by their keys; threads ascend. `written` and `tied` are how many
// were kept before this call and how many of them by a tie. out[place] ← value(number of the thread's competitor).
template <int kMany, class Value>
__device__ __forceinline__ void write_kept(const uint32_t (&key)[kMany], const Threshold& threshold, int keep, int slot,
                                           const Value& value, int32_t* out, int& written, int& ties, TopShared& s) {
  int counts = 0;  // above the threshold, and at it in the upper half
#pragma unroll
  for (const uint32_t k : key) {
    if (k > threshold.key) counts += 1;
    if (k == threshold.key && k != 0) counts += 1 << 16;
  }
  int total = 0;
  const int before = block_scan(counts, slot, s, total);
  int above = written + (before & 0xffff);
  int tied = ties + (before >> 16);
#pragma unroll
  for (int i = 0; i < kMany; ++i) {
    const uint32_t k = key[i];
    const bool equal = k == threshold.key && k != 0;
    if (k > threshold.key || (equal && tied < threshold.tied)) {
      const int place = above + (tied < threshold.tied ? tied : threshold.tied);
      if (place < keep) out[place] = value(i);
    }
    above += k > threshold.key ? 1 : 0;
    tied += equal ? 1 : 0;
  }
  written += total & 0xffff;
  ties += total >> 16;
}

__device__ __forceinline__ void fill_rest(int kept, int keep, int32_t* out) {
  for (int i = kept + static_cast<int>(threadIdx.x); i < keep; i += kTopThreads) out[i] = -1;
}

// Writes the `keep` best of the numbers 0 … n-1, ascending, as value(i), and -1 behind them; ties: lower number first.
// key(i) = 0: i does not compete. The set is exact.
template <class Key, class Value>
__device__ __forceinline__ void write_best(int64_t n, int keep, const Key& key, const Value& value, int32_t* out,
                                           TopShared& s) {
  const auto tid = static_cast<int64_t>(threadIdx.x);
  const Threshold threshold = find_threshold(
      keep, 32,
      [&](const auto& f) {
#pragma unroll 4
        for (int64_t i = tid; i < n; i += kTopThreads) f(key(i));
      },
      s);
  int written = 0;
  int ties = 0;
  int slot = 0;
  __syncthreads();
  for (int64_t from = 0; from < n; from += kTopThreads) {
    const uint32_t k[1] = {from + tid < n ? key(from + tid) : 0};
    write_kept(k, threshold, keep, slot, [&](int) { return value(from + tid); }, out, written, ties, s);
    slot ^= 1;
  }
  fill_rest(written + (ties < threshold.tied ? ties : threshold.tied), keep, out);
  __syncthreads();
}

// The same for keys in memory, whose groups are complete: in registers when they are few, otherwise those of the groups
// with a large enough maximum (`best`, null: keys are few or there are no maxima).
template <class Value>
__device__ __forceinline__ void write_best_of_keys(int64_t n, int keep, const uint32_t* keys, const uint32_t* best,
                                                   const Value& value, int32_t* out, TopShared& s) {
  const int tid = static_cast<int>(threadIdx.x);
  const auto groups = static_cast<int>((n + kGroup - 1) / kGroup);
  int group = tid < groups ? tid : -1;
  if (n > kDirect && best != nullptr) {
    // At least `keep` competitors have the key that `keep` groups reach with their largest.
    const Threshold low = find_threshold(
        keep, 22,
        [&](const auto& f) {
#pragma unroll 8
          for (int i = tid; i < groups; i += kTopThreads) f(best[i]);
        },
        s);
    const uint32_t bound = low.tied > 0 ? low.key : low.key + 1;
    const int run = (groups + kTopThreads - 1) / kTopThreads;
    const int begin = tid * run;
    const int end = begin + run < groups ? begin + run : groups;
    int found = 0;
#pragma unroll 4
    for (int i = begin; i < end; ++i) found += best[i] >= bound ? 1 : 0;
    int total = 0;
    __syncthreads();
    int place = block_scan(found, 0, s, total);
    if (total <= kTopThreads) {
      for (int i = begin; i < end; ++i) {
        if (best[i] >= bound) s.group[place++] = i;
      }
      __syncthreads();
      group = tid < total ? s.group[tid] : -1;
    }
    if (total > kTopThreads) group = -2;
  } else if (n > kDirect) {
    group = -2;
  }
  if (group == -2) {  // the same for all threads: too many, or too many ties
    return write_best(n, keep, [&](int64_t i) { return keys[i]; }, value, out, s);
  }
  uint32_t k[kGroup];
#pragma unroll
  for (int i = 0; i < kGroup; i += 4) {
    const uint4 four =
        group >= 0 ? *reinterpret_cast<const uint4*>(keys + int64_t{group} * kGroup + i) : uint4{0, 0, 0, 0};
    k[i] = four.x;
    k[i + 1] = four.y;
    k[i + 2] = four.z;
    k[i + 3] = four.w;
  }
  const Threshold threshold = find_threshold(
      keep, 32,
      [&](const auto& f) {
#pragma unroll
        for (const uint32_t v : k) f(v);
      },
      s);
  int written = 0;
  int ties = 0;
  __syncthreads();
  write_kept(k, threshold, keep, 1, [&](int i) { return value(int64_t{group} * kGroup + i); }, out, written, ties, s);
  fill_rest(written + (ties < threshold.tied ? ties : threshold.tied), keep, out);
  __syncthreads();
}

}  // namespace di::kernels::cuda
