// The fast form of y = x·Wᵀ for bf16 x over BF16, FP8 and MXFP4 weights whose rows lie in pieces of 16 bytes. Weights
// are the left operand of a warpgroup's product (64 outputs; streamed_products.cuh), rows of x the right one (16, 64 or
// 128).
//
// Stored bytes go to shared memory by asynchronous copies, several depth blocks of 128 columns ahead, each lane's
// pieces where it will read them; they become bf16 in registers and meet x there while the products of the half block
// before still run. Nothing dequantised is ever stored. Which column a lane holds is free as long as both operands
// agree: x is arranged so that a lane's pieces need no shuffling (operand_column). BF16 weights need no change: both
// operands of a product lie in shared memory.
//
// Exactness (performance.md §5.2): e4m3·2^k and e2m1·2^k are bf16 numbers; the code's bits, moved into a bf16, are the
// value times 2^-120 (2^-126), and one multiplication by 2^(k+60) (2^(k+63)) gives the value times 2^-60 (2^-63)
// exactly for k in [-50, 64]. The remaining factor goes onto the fp32 sum. Every scale is applied where it stands:
// nothing is re-based.
//
// Order of the sum of an output: depth steps of 16 in ascending order into the sum of a chunk (gemm.cuh: kChunk),
// chunks in ascending order. The shape of a tile does not enter: any number of rows gives the same bits.
#pragma once

#include "kernels/cuda/common/streamed_products.cuh"
#include "kernels/cuda/gemm.cuh"

namespace di::kernels::cuda {

inline constexpr int kBlockDepth = 128;  // columns of a stage
static_assert(kChunk % kBlockDepth == 0);

template <WeightFormat kFormat>
inline constexpr int kPieces = kFormat == WeightFormat::kFp4Row ? 1
                               : kFormat == WeightFormat::kBf16 ? 4
                                                                : 2;

// Where column c of a depth block stands in an arranged row of x: a fragment's four places are columns 2·quad, +1, +8,
// +9 of its step of 16, and a lane takes them from its piece without shuffling.
DI_HD int operand_column(WeightFormat format, int c) {
  if (format == WeightFormat::kFp4Row) {  // a lane holds 32 columns; a word's nibbles i and i + 4 form a register
    return (c % 32 / 8 * 2 + c % 4 / 2) * 16 + c % 2 * 8 + c / 32 * 2 + c % 8 / 4;
  }
  // FP8: a word's bytes i and i + 2 form a register
  return (c / 64 * 4 + c % 16 / 4) * 16 + c % 2 * 8 + c % 64 / 16 * 2 + c % 4 / 2;
}

// The factor that is left for the sums.
template <WeightFormat kFormat>
inline constexpr float kSumFactor = kFormat == WeightFormat::kFp4Row ? 0x1p63F
                                    : kFormat == WeightFormat::kBf16 ? 1.F
                                                                     : 0x1p60F;

// A scale byte as the pair of bf16 that a register of codes is multiplied by.
template <WeightFormat kFormat>
__device__ __forceinline__ uint32_t code_factor(uint32_t scale) {
  const uint32_t exponent = scale + (kFormat == WeightFormat::kFp4Row ? 63U : 60U);
  const uint32_t half = scale == 255U ? 0x7fc0U : exponent > 254U ? 0x7f80U : exponent << 7;
  return half | half << 16;
}

// Registers of a word of codes, each with two values in bf16: 4 of MXFP4, 2 of FP8.
__device__ __forceinline__ void widen_fp4(uint32_t w, uint32_t factor, uint32_t (&r)[4]) {
  r[0] = multiply_bf16x2(((w << 12) & 0x80008000U) | ((w << 6) & 0x01c001c0U), factor);
  r[1] = multiply_bf16x2(((w << 8) & 0x80008000U) | ((w << 2) & 0x01c001c0U), factor);
  r[2] = multiply_bf16x2(((w << 4) & 0x80008000U) | ((w >> 2) & 0x01c001c0U), factor);
  r[3] = multiply_bf16x2((w & 0x80008000U) | ((w >> 6) & 0x01c001c0U), factor);
}
__device__ __forceinline__ void widen_fp8(uint32_t w, uint32_t factor, uint32_t (&r)[2]) {
  r[0] = multiply_bf16x2(((w << 8) & 0x80008000U) | ((w << 4) & 0x07f007f0U), factor);
  r[1] = multiply_bf16x2((w & 0x80008000U) | ((w >> 4) & 0x07f007f0U), factor);
}

// A block: kGroups warpgroups along the outputs, each with 64 of them, over 8·kTokenTiles rows of x.
template <WeightFormat kFormat_, int kGroups_, int kTokenTiles_>
struct StreamShape {
  static constexpr WeightFormat kFormat = kFormat_;
  static constexpr int kTokenTiles = kTokenTiles_;
  static constexpr int kTokens = 8 * kTokenTiles;
  static constexpr int kWarps = 4 * kGroups_;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRows = 64 * kGroups_;
  static constexpr int kBlocks =
      kTokens == 64 && kFormat != WeightFormat::kBf16 ? 2 : 1;  // of a multiprocessor, at least
  // One of them is being read, one may still be read by products under way, the others are on their way. Two or more
  // blocks of up to 64 rows of x share a multiprocessor (but for BF16).
  static constexpr int kStages = kTokens <= 16                        ? kFormat == WeightFormat::kBf16 ? 5 : 6
                                 : kTokens == 128                     ? kFormat == WeightFormat::kBf16 ? 3 : 4
                                 : kFormat == WeightFormat::kFp8Block ? 3
                                                                      : 4;
  static constexpr int kTokenBytes = kTokens * kBlockDepth * 2;
  static constexpr int kWeightBytes = kRows * kPieces<kFormat> * 64;
  static constexpr int kScaleBytes = kFormat == WeightFormat::kBf16 ? 0 : kRows * 4;
  static constexpr int kWeightsAt = kStages * kTokenBytes;
  static constexpr int kScalesAt = kWeightsAt + kStages * kWeightBytes;
  static constexpr int kShared = kScalesAt + kStages * kScaleBytes;
  // One block of a multiprocessor alone has nothing that works while it waits: its copies are issued behind products
  // and its codes read before they are wanted. Two blocks have no registers for that, and each works while the other
  // waits.
  static constexpr bool kAlone = kBlocks == 1;
  static_assert(kTokenBytes % 2048 == 0 && kWeightBytes % 1024 == 0, "operands start at multiples of 1024");
  static_assert(kShared <= 227 * 1024);
};

// A lane's sums: outputs of its group and 8 further, rows of x of token tile j.
template <class Shape>
struct StreamSum {
  float at[Shape::kTokenTiles][4];
};

struct StreamInput {
  const uint16_t* data = nullptr;    // bf16, arranged unless the weights are BF16
  int64_t stride = 0;                // elements
  const int32_t* row_map = nullptr;  // row r of the product is row row_map[r] / row_divide of data
  int32_t row_divide = 1;
};

// What a thread copies of every stage; one call after the other brings the depth blocks in their order. Where a tile
// has no output, another row's weights are copied, and where it has no row of x nothing is: those sums go nowhere.
template <class Shape>
struct StageCopies {
  static constexpr bool kOperand = Shape::kFormat == WeightFormat::kBf16;
  static constexpr int kP = kPieces<Shape::kFormat>;
  static constexpr int kWeightRuns = kOperand ? 8 : 2;  // rows of weights of this thread
  static constexpr int kRowsApart = Shape::kThreads / 16;
  static constexpr int kInputRuns = Shape::kTokens / kRowsApart;  // rows of x of this thread
  static_assert(kRowsApart % 8 == 0, "rows of a thread have the same place in their swizzle");
  const uint8_t* weights[kWeightRuns];
  const uint8_t* scales = nullptr;
  const uint16_t* input[kInputRuns];
  uint32_t there = 0;  // bits of `input`

  __device__ __forceinline__ StageCopies(const StreamInput& x, int64_t first, int64_t last, const Weight& w,
                                         const Weight& other, const TileRows& tile, int64_t column) {
    const int tid = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int k = 0; k < kWeightRuns; ++k) {
      // BF16: 16 threads a row. Else the lanes of a quad share a row, and a warp's rows are its own.
      const int n = kOperand ? tid / 16 + k * kRowsApart : (tid / 32 * 2 + k) * 8 + tid % 32 / 4;
      const int64_t r = tile.row(n);
      weights[k] = static_cast<const uint8_t*>(tile.second(n) ? other.data : w.data) +
                   ((r >= 0 ? r : 0) * w.cols + column) / 32 * (kP * 16) + (kOperand ? tid % 16 : tid % 4) * 16;
    }
    if constexpr (!kOperand) {
      const int n = tid < Shape::kRows ? tid : 0;
      const int64_t r = tile.row(n) >= 0 ? tile.row(n) : 0;
      scales = (tile.second(n) ? other.scale : w.scale) +
               (w.format == WeightFormat::kFp8Block ? r / 32 : r) * (w.cols / 32) + column / 32;
    }
#pragma unroll
    for (int k = 0; k < kInputRuns; ++k) {
      const int64_t row = first + tid / 16 + k * kRowsApart;
      input[k] = x.data;
      if (row >= last) continue;
      there |= 1U << k;
      input[k] += (x.row_map != nullptr ? x.row_map[row] / x.row_divide : row) * x.stride + column + tid % 16 * 8;
    }
  }

  // Depth block `ahead` behind the one that the pointers are at; known to the compiler where blocks are unrolled, so
  // that no pointer changes while copies that have been issued are still to read it.
  __device__ __forceinline__ void copy_weights(uint8_t* shared, int slot, int ahead) {
    const int tid = static_cast<int>(threadIdx.x);
    uint8_t* to = shared + Shape::kWeightsAt + slot * Shape::kWeightBytes;
#pragma unroll
    for (int k = 0; k < kWeightRuns; ++k) {
      if constexpr (kOperand) {
        copy_weights_async(
            to + tid % 16 / 8 * (Shape::kRows * 128) + panel_offset(tid / 16, tid % 8) + k * kRowsApart * 128,
            weights[k] + ahead * (kP * 64));
      } else {
#pragma unroll
        for (int p = 0; p < kP; ++p) {
          copy_weights_async(to + (((tid / 32 * 2 + k) * kP + p) * 32 + tid % 32) * 16,
                             weights[k] + p * 64 + ahead * (kP * 64));
        }
      }
    }
    if constexpr (!kOperand) {
      if (tid < Shape::kRows) {
        copy_async<4>(shared + Shape::kScalesAt + slot * Shape::kScaleBytes + tid * 4,
                      scales + ahead * (kBlockDepth / 32), true);
      }
    }
  }
  // Rows of x, those of part `part` of `parts`.
  __device__ __forceinline__ void copy_input(uint8_t* shared, int slot, int ahead, int part, int parts) {
    const int tid = static_cast<int>(threadIdx.x);
    uint8_t* to =
        shared + slot * Shape::kTokenBytes + tid % 16 / 8 * (Shape::kTokens * 128) + panel_offset(tid / 16, tid % 8);
#pragma unroll
    for (int k = 0; k < kInputRuns; ++k) {
      if (k * parts / kInputRuns != part) continue;
      if ((there >> k & 1U) != 0) copy_async<16>(to + k * kRowsApart * 128, input[k] + ahead * kBlockDepth, true);
    }
  }
  __device__ __forceinline__ void advance(int blocks) {
#pragma unroll
    for (int k = 0; k < kWeightRuns; ++k) weights[k] += blocks * (kP * 64);
    if constexpr (!kOperand) scales += blocks * (kBlockDepth / 32);
#pragma unroll
    for (int k = 0; k < kInputRuns; ++k) input[k] += blocks * kBlockDepth;
  }
};

// A lane's weights of a stage: of two rows of the group (8 apart) the pieces and what their codes are multiplied by.
template <class Shape>
struct StageWeights {
  static constexpr WeightFormat kFormat = Shape::kFormat;
  static constexpr bool kFp4 = kFormat == WeightFormat::kFp4Row;
  static constexpr int kPieceBytes = 32 * 16;  // from one piece of the lane to its next
  const uint8_t* pieces;
  uint32_t scale[2];   // of the rows' four groups, those of this lane from bit 0 on (FP8: of half 1 from bit 16 on)
  uint32_t factor[2];  // MXFP4: of the piece

  __device__ __forceinline__ StageWeights(const uint8_t* weights, const uint8_t* scales) : pieces(weights) {
    const int warp = static_cast<int>(threadIdx.x / 32);
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int quad = lane % 4;
    pieces += warp * 2 * kPieces<kFormat> * kPieceBytes + lane * 16;
#pragma unroll
    for (int run = 0; run < 2; ++run) {
      scale[run] =
          reinterpret_cast<const uint32_t*>(scales)[(warp * 2 + run) * 8 + lane / 4] >> ((kFp4 ? quad : quad / 2) * 8);
      if constexpr (kFp4) factor[run] = code_factor<kFormat>(scale[run] & 255U);
    }
  }

  // The codes of half `half` of the stage.
  struct Codes {
    uint32_t words[2][kFp4 ? 2 : 4];
  };
  __device__ __forceinline__ Codes load(int half) const {
    Codes codes;
#pragma unroll
    for (int run = 0; run < 2; ++run) {
      if constexpr (kFp4) {
        const uint2 v = *reinterpret_cast<const uint2*>(pieces + run * kPieceBytes + half * 8);
        codes.words[run][0] = v.x;
        codes.words[run][1] = v.y;
      } else {
        const uint4 v = *reinterpret_cast<const uint4*>(pieces + (run * kPieces<kFormat> + half) * kPieceBytes);
        codes.words[run][0] = v.x;
        codes.words[run][1] = v.y;
        codes.words[run][2] = v.z;
        codes.words[run][3] = v.w;
      }
    }
    return codes;
  }

  // Their fragments: four depth steps.
  __device__ __forceinline__ void widen(const Codes& codes, int half, uint32_t (&a)[4][4]) const {
#pragma unroll
    for (int run = 0; run < 2; ++run) {
      if constexpr (kFp4) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          uint32_t wide[4];
          widen_fp4(codes.words[run][i], factor[run], wide);
          a[2 * i][run] = wide[0];
          a[2 * i][2 + run] = wide[1];
          a[2 * i + 1][run] = wide[2];
          a[2 * i + 1][2 + run] = wide[3];
        }
      } else {
        const uint32_t by = code_factor<kFormat>(scale[run] >> (half * 16) & 255U);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          uint32_t wide[2];
          widen_fp8(codes.words[run][i], by, wide);
          a[i][run] = wide[0];
          a[i][2 + run] = wide[1];
        }
      }
    }
  }
};

// total ← rows [first, last) of x times the weight rows of `tile`, columns [begin, end), both multiples of kBlockDepth.
// Shared memory: Shape::kShared bytes; free again after the caller's next barrier. Of what the kernel before it in the
// stream writes only x.data is read, and that after wait_for_previous.
template <class Shape>
__device__ __forceinline__ void streamed_product(const StreamInput& x, int64_t first, int64_t last, const Weight& w,
                                                 const Weight& other, const TileRows& tile, int64_t begin, int64_t end,
                                                 uint8_t* shared, StreamSum<Shape>& total) {
  constexpr WeightFormat kFormat = Shape::kFormat;
  constexpr int kTiles = Shape::kTokenTiles;
  constexpr int kAhead = Shape::kStages - 2;                              // stages on their way
  const int warpgroup = shuffle(static_cast<int>(threadIdx.x / 128), 0);  // known to be the same in the whole warp
  StageCopies<Shape> copies(x, first, last, w, other, tile, begin);

  float chunk[kTiles][4];
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
#pragma unroll
    for (int v = 0; v < 4; ++v) total.at[j][v] = chunk[j][v] = 0.F;
  }

  const int blocks = static_cast<int>((end - begin) / kBlockDepth);
#pragma unroll
  for (int s = 0; s < kAhead; ++s) {
    if (s < blocks) copies.copy_weights(shared, s, s);
  }
  wait_for_previous();  // which may make x, not the weights
#pragma unroll
  for (int s = 0; s < kAhead; ++s) {
    if (s < blocks) copies.copy_input(shared, s, s, 0, 1);
    commit_copies();
  }
  copies.advance(kAhead);
  // Unrolled, a stage's place is known when the program is compiled, and so are its addresses.
  constexpr int kUnrolled = Shape::kAlone ? Shape::kStages : 1;
  constexpr bool kCodes = kFormat != WeightFormat::kBf16;
  int running = 0;
  for (int turn = 0; turn < blocks; turn += kUnrolled) {
#pragma unroll
    for (int unrolled = 0; unrolled < kUnrolled; ++unrolled) {
      const int block = turn + unrolled;
      if (block >= blocks) break;
      const int slot = kUnrolled == 1 ? running : unrolled;
      const int to = slot + kAhead < Shape::kStages ? slot + kAhead : slot + kAhead - Shape::kStages;
      const bool more = block + kAhead < blocks;
      wait_copies<kAhead - 1>();
      publish_operands();
      // Every thread's copies are there; the products of the block before the last are done, and its stage is free.
      __syncthreads();
      if (more && !(Shape::kAlone && kCodes)) {
        copies.copy_weights(shared, to, unrolled);
        copies.copy_input(shared, to, unrolled, 0, 1);
        if constexpr (!Shape::kAlone) copies.advance(1);
      }
      const uint8_t* rows = shared + slot * Shape::kTokenBytes;
      const uint8_t* weights = shared + Shape::kWeightsAt + slot * Shape::kWeightBytes;
      if constexpr (!kCodes) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Operand b = operand(rows + half * (Shape::kTokens * 128));
          const Operand a = operand(weights + half * (Shape::kRows * 128) + warpgroup * (64 * 128));
          begin_products();
#pragma unroll
          for (int step = 0; step < 4; ++step) operand_product(chunk, a, b, step);
          commit_products();
          wait_products<1>();
        }
      } else {
        const StageWeights<Shape> stage(weights, shared + Shape::kScalesAt + slot * Shape::kScaleBytes);
        typename StageWeights<Shape>::Codes codes = stage.load(0);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Operand b = operand(rows + half * (Shape::kTokens * 128));
          uint32_t a[4][4];
          stage.widen(codes, half, a);
          if (half == 0 && Shape::kAlone) codes = stage.load(1);
          begin_products();
#pragma unroll
          for (int step = 0; step < 4; ++step) operand_product(chunk, a[step], b, step);
          commit_products();
          if (more && Shape::kAlone) {
            if (half == 0) copies.copy_weights(shared, to, unrolled);
            copies.copy_input(shared, to, unrolled, half, 2);
          }
          wait_products<1>();  // the registers of the half before are free
          if (half == 0 && !Shape::kAlone) codes = stage.load(1);
        }
      }
      commit_copies();
      if ((block + 1) % (kChunk / kBlockDepth) == 0 || block + 1 == blocks) {
        wait_products<0>();
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
#pragma unroll
          for (int v = 0; v < 4; ++v) {
            total.at[j][v] = fmaf(chunk[j][v], kSumFactor<kFormat>, total.at[j][v]);
            chunk[j][v] = 0.F;
          }
        }
      }
      running = slot + 1 < Shape::kStages ? slot + 1 : 0;
    }
    if constexpr (Shape::kAlone) copies.advance(kUnrolled);
  }
}

// Which tile a block computes: bands of eight tiles of rows share the outputs' weights while those are in the cache.
struct TilePlace {
  int64_t outputs;
  int64_t rows;
};
__device__ __forceinline__ TilePlace tile_place() {
  constexpr unsigned kBand = 8;
  const unsigned id = blockIdx.y * gridDim.x + blockIdx.x;
  const unsigned first = id / (kBand * gridDim.x) * kBand;
  const unsigned band = gridDim.y - first < kBand ? gridDim.y - first : kBand;
  const unsigned within = id - first * gridDim.x;
  return {within / band, first + within % band};
}

// f(tile row, row of x in the tile, value) for every sum of the lane.
template <class Shape, class F>
__device__ __forceinline__ void for_each_sum(const StreamSum<Shape>& sum, const F& f) {
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int j = 0; j < Shape::kTokenTiles; ++j) {
#pragma unroll
    for (int v = 0; v < 4; ++v) f(warp * 16 + lane / 4 + v / 2 * 8, j * 8 + lane % 4 * 2 + v % 2, sum.at[j][v]);
  }
}

// Whether a matrix can be streamed, and rows of x with it (they are arranged first unless it is BF16).
inline bool streams(const Weight& w) {
  if (w.cols % kBlockDepth != 0 || !is_aligned(w.data, 16)) return false;
  if (w.format == WeightFormat::kBf16) return true;
  if (w.format == WeightFormat::kF32 || (w.format == WeightFormat::kFp8Block && w.block != 32)) return false;
  return is_aligned(w.scale, 4);
}

// x as the product over weights of `format` reads it: activations quantised per `group` channels (0: not), columns
// arranged per depth block. out: [x.rows, x.cols] bf16, dense. x.cols is a multiple of kBlockDepth.
void arrange_input(const Tensor& x, WeightFormat format, int group, uint16_t* out, bool early, Stream& stream);

// How `rows` rows of x times `outputs` outputs in each of `groups` are cut.
struct StreamTile {
  int tokens;   // 16 or 32 over 64 outputs, 64 or 128 over 128
  bool enough;  // blocks for the whole device
};
inline int stream_outputs(int tokens) {
  return tokens <= 32 ? 64 : 128;
}
// Where columns can be split (a partial sum per chunk), a tile that leaves the device empty is split: few rows wait for
// their bytes and want more blocks than multiprocessors; many rows have the products to wait for, and partial sums cost
// them more. Where they cannot, the largest tile that gives every multiprocessor a block.
inline StreamTile stream_tile(int64_t rows, int64_t outputs, int64_t groups, bool splits) {
  constexpr int64_t kMultiprocessors = 132;  // of an H200
  const int fitting = rows <= 16 ? 16 : rows <= 32 ? 32 : rows < 192 ? 64 : 128;
  const int smallest = splits ? (fitting == 128 ? 64 : fitting) : 16;
  for (int tokens = fitting; tokens >= smallest; tokens /= 2) {
    const int64_t blocks = divide_up(outputs, stream_outputs(tokens)) * groups * divide_up(rows, tokens);
    if (blocks >= (splits && rows < 192 ? kMultiprocessors * 3 / 2 : kMultiprocessors)) return {tokens, true};
  }
  return {smallest, false};
}

}  // namespace di::kernels::cuda
