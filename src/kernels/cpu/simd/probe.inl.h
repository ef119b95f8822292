// Multiply-add loops without memory traffic: the arithmetic ceilings that benchmarks compare with. One call does `n`
// rounds of 24 independent vector instructions (enough to cover the latency of any current core).

template <class Kind>
inline float multiply_add_loop(int64_t n) {
  alignas(64) typename Kind::X ones[Kind::kLanes];
  for (int i = 0; i < Kind::kLanes; ++i) ones[i] = Kind::from_float(1.F);
  constexpr int kSums = L == 16 ? 24 : 12;
  F acc[kSums];
#pragma GCC unroll 24
  for (int i = 0; i < kSums; ++i) acc[i] = zero();
  const typename Kind::V x = Kind::load(ones);
  for (int64_t r = 0; r < n * (24 / kSums); ++r) {
#pragma GCC unroll 24
    for (int i = 0; i < kSums; ++i) {
      acc[i] = Kind::dot(x, x, acc[i]);
      asm volatile("" : "+v"(acc[i]));
    }
  }
#pragma GCC unroll 24
  for (int i = 1; i < kSums; ++i) acc[0] = add(acc[0], acc[i]);
  return sum_lanes(acc[0]);
}

inline Probe make_probe() {
  Probe p{};
  p.wide = multiply_add_loop<WideKind>;
  p.wide_flops = 2.0 * 24 * L;
#if DI_CPU_BF16_DOT
  p.pairs = multiply_add_loop<PairKind>;
  p.pair_flops = 2.0 * 24 * PairKind::kLanes;
#endif
  return p;
}
