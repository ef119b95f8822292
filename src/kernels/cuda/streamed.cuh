// The fast form of y = x·Wᵀ for bf16 x over BF16, FP8 and MXFP4 weights whose rows lie in pieces of 16 bytes. Weights
// are the left operand of mma.m16n8k16 (16 outputs), rows of x the right one (8 rows), so that few rows waste little.
//
// Stored bytes go to shared memory by asynchronous copies, several depth blocks of 128 columns ahead, each lane's
// pieces where it will read them; they become bf16 in registers and meet x there. Nothing dequantised is ever stored.
// Which column a lane holds is free as long as both operands agree: x is arranged so that a lane's pieces need no
// shuffling (arranged_column).
//
// Exactness (performance.md §5.2): e4m3·2^k and e2m1·2^k are bf16 numbers; the code's bits, moved into a bf16, are the
// value times 2^-120 (2^-126), and one multiplication by 2^(k+60) (2^(k+63)) gives the value times 2^-60 (2^-63)
// exactly for k in [-50, 64]. The remaining factor goes onto the fp32 sum. Every scale is applied where it stands:
// nothing is re-based.
//
// Order of the sum of an output: depth steps of 16 in ascending order into the sum of a chunk (gemm.cuh: kChunk),
// chunks in ascending order. The shape of a tile does not enter: any number of rows gives the same bits.
#pragma once

#include "kernels/cuda/gemm.cuh"

namespace di::kernels::cuda {

inline constexpr int kBlockDepth = 128;   // columns of a stage
inline constexpr int kStreamPitch = 288;  // bytes of a row of x in shared memory: reads of 8 bytes hit all banks once
static_assert(kChunk % kBlockDepth == 0);

template <WeightFormat kFormat>
inline constexpr int kPieces = kFormat == WeightFormat::kFp4Row ? 1
                               : kFormat == WeightFormat::kBf16 ? 4
                                                                : 2;

// Where column c of a depth block stands in an arranged row: step·16 + lane of the quad·4 + place in the fragment.
DI_HD int arranged_column(WeightFormat format, int c) {
  if (format == WeightFormat::kFp4Row) {  // a lane holds 32 columns; a word's nibbles i and i + 4 form a register
    const int r = c % 4;
    return ((c % 32 / 8 * 2 + r / 2) * 4 + c / 32) * 4 + r % 2 * 2 + c % 8 / 4;
  }
  if (format == WeightFormat::kBf16) {
    return ((c / 32 * 2 + c % 8 / 4) * 4 + c % 32 / 8) * 4 + c % 4;
  }
  // FP8: a word's bytes i and i + 2 form a register
  return ((c / 64 * 4 + c % 16 / 4) * 4 + c % 64 / 16) * 4 + c % 2 * 2 + c % 4 / 2;
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

// A block: 4 warps along the outputs, each with kRowTiles·16 of them, and kTokenWarps along the rows of x, each with
// kTokenTiles·8.
template <WeightFormat kFormat_, int kRowTiles_, int kTokenTiles_, int kTokenWarps_>
struct StreamShape {
  static constexpr WeightFormat kFormat = kFormat_;
  static constexpr int kRowTiles = kRowTiles_;
  static constexpr int kTokenTiles = kTokenTiles_;
  static constexpr int kTokenWarps = kTokenWarps_;
  static constexpr int kWarps = 4 * kTokenWarps;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRows = 64 * kRowTiles;
  static constexpr int kTokens = 8 * kTokenTiles * kTokenWarps;
  static constexpr int kStages = kFormat == WeightFormat::kBf16                      ? 3
                                 : kFormat == WeightFormat::kFp4Row && kTokens <= 16 ? 6
                                                                                     : 4;
  static constexpr int kWeightBytes = kRows * kPieces<kFormat> * 64;
  static constexpr int kScaleBytes = kFormat == WeightFormat::kBf16 ? 0 : kRows * 4;
  static constexpr int kStageBytes = kWeightBytes + kScaleBytes + kTokens * kStreamPitch;
  static constexpr int kShared = kStages * kStageBytes + kTokens * 8;
  static_assert(kRows / 8 == 2 * kWarps, "a warp copies two runs of eight weight rows");
  static_assert(kShared <= 227 * 1024);
};

// A lane's sums: outputs of row tile i (rows of the lane's group, and 8 further), rows of x of token tile j.
template <class Shape>
struct StreamSum {
  float at[Shape::kRowTiles][Shape::kTokenTiles][4];
};

struct StreamInput {
  const uint16_t* data = nullptr;    // bf16, arranged unless the weights are BF16
  int64_t stride = 0;                // elements
  const int32_t* row_map = nullptr;  // row r of the product is row row_map[r] / row_divide of data
  int32_t row_divide = 1;
};

// total ← rows [first, last) of x times the weight rows of `tile`, columns [begin, end), both multiples of kBlockDepth.
// Shared memory: Shape::kShared bytes; free again after the caller's next barrier.
template <class Shape>
__device__ __forceinline__ void streamed_product(const StreamInput& x, int64_t first, int64_t last, const Weight& w,
                                                 const Weight& other, const TileRows& tile, int64_t begin, int64_t end,
                                                 uint8_t* shared, StreamSum<Shape>& total) {
  constexpr WeightFormat kFormat = Shape::kFormat;
  constexpr int kP = kPieces<kFormat>;
  constexpr int kTiles = Shape::kTokenTiles;
  const int tid = static_cast<int>(threadIdx.x);
  const int warp = tid / 32;
  const int lane = tid % 32;
  const int group = lane / 4;
  const int quad = lane % 4;
  auto* sources = reinterpret_cast<int64_t*>(shared + Shape::kStages * Shape::kStageBytes);  // [kTokens] offset or -1

  // What this thread copies of every stage.
  const int64_t row_bytes = w.cols / 32 * (kP * 16);
  const uint8_t* from[2];
  bool there[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int n = (warp + k * Shape::kWarps) * 8 + group;
    const int64_t r = tile.row(n);
    there[k] = r >= 0;
    from[k] =
        static_cast<const uint8_t*>((tile.second(n) ? other : w).data) + (there[k] ? r : 0) * row_bytes + quad * 16;
  }
  const uint8_t* scale_from = nullptr;
  if constexpr (kFormat != WeightFormat::kBf16) {
    if (tid < Shape::kRows) {
      const Weight& m = tile.second(tid) ? other : w;
      const int64_t r = tile.row(tid);
      if (r >= 0) scale_from = m.scale + (m.format == WeightFormat::kFp8Block ? r / 32 : r) * (m.cols / 32);
    }
  }
  for (int t = tid; t < Shape::kTokens; t += Shape::kThreads) {
    const int64_t row = first + t;
    sources[t] = row < last ? (x.row_map != nullptr ? x.row_map[row] / x.row_divide : row) * x.stride : -1;
  }
  __syncthreads();

  const auto copy_stage = [&](int64_t column, int slot) {
    uint8_t* stage = shared + slot * Shape::kStageBytes;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int p = 0; p < kP; ++p) {
        copy_async<16>(stage + (((warp + k * Shape::kWarps) * kP + p) * 32 + lane) * 16,
                       from[k] + column / 32 * (kP * 16) + p * 64, there[k]);
      }
    }
    if constexpr (kFormat != WeightFormat::kBf16) {
      if (tid < Shape::kRows) {
        copy_async<4>(stage + Shape::kWeightBytes + tid * 4,
                      scale_from != nullptr ? scale_from + column / 32 : static_cast<const uint8_t*>(w.scale),
                      scale_from != nullptr);
      }
    }
    uint8_t* to = stage + Shape::kWeightBytes + Shape::kScaleBytes;
    if constexpr (kFormat == WeightFormat::kBf16) {  // natural rows: units of four columns go to their places
      const int unit = tid % 32;
      const int place = (unit / 8 * 2 + unit % 2) * 4 + unit % 8 / 2;
      for (int t = tid / 32; t < Shape::kTokens; t += Shape::kWarps) {
        const int64_t source = sources[t];
        copy_async<8>(to + t * kStreamPitch + place * 8, x.data + (source < 0 ? 0 : source) + column + unit * 4,
                      source >= 0);
      }
    } else {
      const int part = tid % 16;
#pragma unroll
      for (int k = 0; k < kTiles; ++k) {
        const int t = tid / 16 + k * (Shape::kThreads / 16);
        const int64_t source = sources[t];
        copy_async<16>(to + t * kStreamPitch + part * 16, x.data + (source < 0 ? 0 : source) + column + part * 8,
                       source >= 0);
      }
    }
  };

  const int row_warp = warp % 4;
  const int token0 = warp / 4 * kTiles * 8;
  const int64_t left = last - first - token0;
  const int used = left <= 0 ? 0 : left >= kTiles * 8 ? kTiles : static_cast<int>((left + 7) / 8);  // token tiles
  StreamSum<Shape> chunk;
#pragma unroll
  for (int i = 0; i < Shape::kRowTiles; ++i) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int v = 0; v < 4; ++v) total.at[i][j][v] = chunk.at[i][j][v] = 0.F;
    }
  }

  const auto multiply = [&](const uint8_t* rows, int step, const uint32_t(&a)[Shape::kRowTiles][4]) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      if (j >= used) break;  // the same for the whole warp
      const uint2 b =
          *reinterpret_cast<const uint2*>(rows + (token0 + j * 8 + group) * kStreamPitch + (step * 4 + quad) * 8);
#pragma unroll
      for (int i = 0; i < Shape::kRowTiles; ++i) mma_bf16(chunk.at[i][j], a[i], b.x, b.y);
    }
  };

  const int blocks = static_cast<int>((end - begin) / kBlockDepth);
#pragma unroll
  for (int s = 0; s < Shape::kStages - 1; ++s) {
    if (s < blocks) copy_stage(begin + int64_t{s} * kBlockDepth, s);
    commit_copies();
  }
  for (int block = 0; block < blocks; ++block) {
    wait_copies<Shape::kStages - 2>();
    __syncthreads();  // every thread's copies are there, and the stage before has been read
    if (block + Shape::kStages - 1 < blocks) {
      copy_stage(begin + int64_t{block + Shape::kStages - 1} * kBlockDepth,
                 (block + Shape::kStages - 1) % Shape::kStages);
    }
    commit_copies();
    const uint8_t* stage = shared + block % Shape::kStages * Shape::kStageBytes;
    const uint8_t* rows = stage + Shape::kWeightBytes + Shape::kScaleBytes;
    const auto* scales = reinterpret_cast<const uint32_t*>(stage + Shape::kWeightBytes);
#pragma unroll
    for (int p = 0; p < kP; ++p) {
      uint32_t raw[Shape::kRowTiles][2][4];
      uint32_t factor[Shape::kRowTiles][2];
#pragma unroll
      for (int i = 0; i < Shape::kRowTiles; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int run = (row_warp * Shape::kRowTiles + i) * 2 + half;
          const uint4 v = *reinterpret_cast<const uint4*>(stage + ((run * kP + p) * 32 + lane) * 16);
          raw[i][half][0] = v.x;
          raw[i][half][1] = v.y;
          raw[i][half][2] = v.z;
          raw[i][half][3] = v.w;
          if constexpr (kFormat == WeightFormat::kBf16) {
            factor[i][half] = 0;
          } else {
            const int scale = kFormat == WeightFormat::kFp4Row ? quad : p * 2 + quad / 2;
            factor[i][half] = code_factor<kFormat>(scales[run * 8 + group] >> (scale * 8) & 255U);
          }
        }
      }
      uint32_t a[Shape::kRowTiles][4];
      if constexpr (kFormat == WeightFormat::kFp4Row) {
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          uint32_t wide[Shape::kRowTiles][2][4];
#pragma unroll
          for (int i = 0; i < Shape::kRowTiles; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) widen_fp4(raw[i][half][word], factor[i][half], wide[i][half]);
          }
#pragma unroll
          for (int part = 0; part < 2; ++part) {
#pragma unroll
            for (int i = 0; i < Shape::kRowTiles; ++i) {
              a[i][0] = wide[i][0][2 * part];
              a[i][1] = wide[i][1][2 * part];
              a[i][2] = wide[i][0][2 * part + 1];
              a[i][3] = wide[i][1][2 * part + 1];
            }
            multiply(rows, word * 2 + part, a);
          }
        }
      } else if constexpr (kFormat == WeightFormat::kBf16) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
#pragma unroll
          for (int i = 0; i < Shape::kRowTiles; ++i) {
            a[i][0] = raw[i][0][2 * part];
            a[i][1] = raw[i][1][2 * part];
            a[i][2] = raw[i][0][2 * part + 1];
            a[i][3] = raw[i][1][2 * part + 1];
          }
          multiply(rows, p * 2 + part, a);
        }
      } else {
#pragma unroll
        for (int word = 0; word < 4; ++word) {
#pragma unroll
          for (int i = 0; i < Shape::kRowTiles; ++i) {
            uint32_t wide[2][2];
#pragma unroll
            for (int half = 0; half < 2; ++half) widen_fp8(raw[i][half][word], factor[i][half], wide[half]);
            a[i][0] = wide[0][0];
            a[i][1] = wide[1][0];
            a[i][2] = wide[0][1];
            a[i][3] = wide[1][1];
          }
          multiply(rows, p * 4 + word, a);
        }
      }
    }
    if ((block + 1) % (kChunk / kBlockDepth) == 0 || block + 1 == blocks) {
#pragma unroll
      for (int i = 0; i < Shape::kRowTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
#pragma unroll
          for (int v = 0; v < 4; ++v) {
            total.at[i][j][v] += chunk.at[i][j][v] * kSumFactor<kFormat>;
            chunk.at[i][j][v] = 0.F;
          }
        }
      }
    }
  }
}

// f(tile row, row of x in the tile, value) for every sum of the lane.
template <class Shape, class F>
__device__ __forceinline__ void for_each_sum(const StreamSum<Shape>& sum, const F& f) {
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < Shape::kRowTiles; ++i) {
#pragma unroll
    for (int j = 0; j < Shape::kTokenTiles; ++j) {
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        f((warp % 4 * Shape::kRowTiles + i) * 16 + lane / 4 + v / 2 * 8,
          (warp / 4 * Shape::kTokenTiles + j) * 8 + lane % 4 * 2 + v % 2, sum.at[i][j][v]);
      }
    }
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
void arrange_input(const Tensor& x, WeightFormat format, int group, uint16_t* out, Stream& stream);

// Rows of x of a tile for `rows` of them: 16, 64 or 128. Runs of eight that a tile does not have cost nothing.
inline int stream_tokens(int64_t rows) {
  return rows <= 16 ? 16 : rows < 192 ? 64 : 128;
}

}  // namespace di::kernels::cuda
