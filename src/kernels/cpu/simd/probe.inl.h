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

#if DI_CPU_TILES
// Four independent sums, as the product has them.
inline float tile_loop(int64_t n) {
  alignas(64) float c[kTileSums] = {};
  Tiles tiles;
  tiles.zero<0>();
  tiles.zero<1>();
  tiles.zero<2>();
  tiles.zero<3>();
  tiles.load<4>(c, kTileRowBytes);
  tiles.load<5>(c, kTileRowBytes);
  tiles.load<6>(c, kTileRowBytes);
  tiles.load<7>(c, kTileRowBytes);
  for (int64_t r = 0; r < n; ++r) {
    tiles.multiply<0, 4, 6>();
    tiles.multiply<1, 4, 7>();
    tiles.multiply<2, 5, 6>();
    tiles.multiply<3, 5, 7>();
  }
  tiles.store<0>(c, kTileRowBytes);
  return c[0];
}
#endif

inline Probe make_probe() {
  Probe p{};
  p.wide = multiply_add_loop<WideKind>;
  p.wide_flops = 2.0 * 24 * L;
#if DI_CPU_BF16_DOT
  p.pairs = multiply_add_loop<PairKind>;
  p.pair_flops = 2.0 * 24 * PairKind::kLanes;
#endif
#if DI_CPU_TILES
  p.tiles = tile_loop;
  p.tile_flops = 2.0 * 4 * 16 * 16 * 32;
#endif
  return p;
}
