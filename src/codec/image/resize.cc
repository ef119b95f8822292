// Resizing, byte for byte as the service does it (vision.md §3.2, §3.3). Compiled without contraction of a*b+c: one
// rounding less changes bytes.
#include <algorithm>
#include <cmath>

#include "codec/image/canvas.h"

namespace di::codec {

namespace {

uint8_t to_byte(float value) {
  return static_cast<uint8_t>(std::clamp(std::nearbyintf(value), 0.0F, 255.0F));
}

// Four taps of one output coordinate.
struct Taps {
  int first = 0;       // of the four source coordinates; may lie outside, then the border's counts
  int weight[4] = {};  // scaled by 2048
};

std::vector<Taps> cubic_taps(uint32_t in, uint32_t out) {
  constexpr float kA = -0.75F;
  const double scale = static_cast<double>(in) / out;
  std::vector<Taps> taps(out);
  for (uint32_t d = 0; d < out; ++d) {
    const auto at = static_cast<float>((d + 0.5) * scale - 0.5);
    const float start = std::floor(at);
    const float x = at - start;
    const float y = 1.0F - x;
    float c[4];
    c[0] = ((kA * (x + 1) - 5 * kA) * (x + 1) + 8 * kA) * (x + 1) - 4 * kA;
    c[1] = ((kA + 2) * x - (kA + 3)) * x * x + 1;
    c[2] = ((kA + 2) * y - (kA + 3)) * y * y + 1;
    c[3] = 1.0F - c[0] - c[1] - c[2];
    taps[d].first = static_cast<int>(start) - 1;
    for (int k = 0; k < 4; ++k) taps[d].weight[k] = static_cast<int>(std::nearbyintf(c[k] * 2048.0F));
  }
  return taps;
}

int clamped(int at, uint32_t size) {
  return std::clamp(at, 0, static_cast<int>(size) - 1);
}

// One source row through the horizontal taps, scaled by 2048.
void horizontal(const uint8_t* row, uint32_t width, const std::vector<Taps>& taps, int32_t* out) {
  for (const Taps& t : taps) {
    int32_t sum[3] = {};
    for (int k = 0; k < 4; ++k) {
      const uint8_t* pixel = row + 3 * clamped(t.first + k, width);
      for (int c = 0; c < 3; ++c) sum[c] += pixel[c] * t.weight[k];
    }
    out = std::copy_n(sum, 3, out);
  }
}

// The last bytes of a row, which do not fill a vector of eight, are summed as integers and the others as floats: the
// results differ now and then.
void vertical(const int32_t* const rows[4], const Taps& taps, size_t bytes, uint8_t* out) {
  float b[4];
  for (int k = 0; k < 4; ++k) b[k] = static_cast<float>(taps.weight[k]) * 0x1p-22F;
  const size_t in_floats = bytes / 8 * 8;
  for (size_t i = 0; i < in_floats; ++i) {
    float r = static_cast<float>(rows[3][i]) * b[3];
    r = static_cast<float>(rows[2][i]) * b[2] + r;
    r = static_cast<float>(rows[1][i]) * b[1] + r;
    r = static_cast<float>(rows[0][i]) * b[0] + r;
    out[i] = to_byte(r);
  }
  for (size_t i = in_floats; i < bytes; ++i) {
    int32_t sum = 1 << 21;
    for (int k = 0; k < 4; ++k) sum += rows[k][i] * taps.weight[k];
    out[i] = static_cast<uint8_t>(std::clamp(sum >> 22, 0, 255));
  }
}

// Sources of one output coordinate and their shares.
struct AreaTap {
  uint32_t source;
  float weight;
};

std::vector<std::vector<AreaTap>> area_taps(uint32_t in, uint32_t out) {
  const double scale = static_cast<double>(in) / out;
  std::vector<std::vector<AreaTap>> taps(out);
  for (uint32_t d = 0; d < out; ++d) {
    const double begin = d * scale;
    const double end = begin + scale;
    const double cell = std::min(scale, in - begin);
    const double last = std::min(std::floor(end), static_cast<double>(in) - 1);
    const double first = std::min(std::ceil(begin), last);
    auto& list = taps[d];
    const auto add = [&](double source, double weight) {
      list.push_back({static_cast<uint32_t>(source), static_cast<float>(weight)});
    };
    if (first - begin > 1e-3) add(first - 1, (first - begin) / cell);
    for (double source = first; source < last; ++source) add(source, 1.0 / cell);
    if (end - last > 1e-3) add(last, std::min(std::min(end - last, 1.0), cell) / cell);
  }
  return taps;
}

bool is_whole(double scale) {
  return std::abs(scale - std::nearbyint(scale)) < 2.2e-16;
}

// Both ratios are whole numbers: the mean of each box.
Pixels box_mean(const Pixels& image, uint32_t width, uint32_t height) {
  const uint32_t ix = image.width / width;
  const uint32_t iy = image.height / height;
  const float share = static_cast<float>(1.0 / (static_cast<double>(ix) * iy));
  Pixels out{width, height, std::vector<uint8_t>(size_t{3} * width * height)};
  uint8_t* to = out.rgb.data();
  for (uint32_t y = 0; y < height; ++y) {
    for (uint32_t x = 0; x < width; ++x) {
      for (uint32_t c = 0; c < 3; ++c) {
        int sum = 0;
        for (uint32_t sy = 0; sy < iy; ++sy) {
          const uint8_t* row = image.rgb.data() + 3 * (size_t{y * iy + sy} * image.width + size_t{x} * ix) + c;
          for (uint32_t sx = 0; sx < ix; ++sx) sum += row[3 * sx];
        }
        *to++ = ix == 2 && iy == 2 ? static_cast<uint8_t>((sum + 2) >> 2) : to_byte(static_cast<float>(sum) * share);
      }
    }
  }
  return out;
}

}  // namespace

Pixels resize_bicubic(const Pixels& image, uint32_t width, uint32_t height) {
  const std::vector<Taps> across = cubic_taps(image.width, width);
  const std::vector<Taps> down = cubic_taps(image.height, height);
  const size_t bytes = size_t{3} * width;
  std::vector<int32_t> ring(4 * bytes);  // the rows in use, each at its number modulo 4
  int held[4] = {-1, -1, -1, -1};
  Pixels out{width, height, std::vector<uint8_t>(bytes * height)};
  for (uint32_t y = 0; y < height; ++y) {
    const int32_t* rows[4];
    for (int k = 0; k < 4; ++k) {
      const int source = clamped(down[y].first + k, image.height);
      const auto slot = static_cast<size_t>(source % 4);
      if (held[slot] != source) {
        horizontal(image.rgb.data() + size_t{3} * image.width * static_cast<size_t>(source), image.width, across,
                   ring.data() + slot * bytes);
        held[slot] = source;
      }
      rows[k] = ring.data() + slot * bytes;
    }
    vertical(rows, down[y], bytes, out.rgb.data() + bytes * y);
  }
  return out;
}

Pixels resize_area(const Pixels& image, uint32_t width, uint32_t height) {
  if (is_whole(static_cast<double>(image.width) / width) && is_whole(static_cast<double>(image.height) / height)) {
    return box_mean(image, width, height);
  }
  const auto across = area_taps(image.width, width);
  const auto down = area_taps(image.height, height);
  const size_t bytes = size_t{3} * width;
  Pixels out{width, height, std::vector<uint8_t>(bytes * height)};
  std::vector<float> row(bytes);
  std::vector<float> sum(bytes);
  for (uint32_t y = 0; y < height; ++y) {
    std::fill(sum.begin(), sum.end(), 0.0F);
    for (const AreaTap& tap : down[y]) {
      const uint8_t* source = image.rgb.data() + size_t{3} * image.width * tap.source;
      for (uint32_t x = 0; x < width; ++x) {
        float channel[3] = {};
        for (const AreaTap& part : across[x]) {
          for (size_t c = 0; c < 3; ++c) channel[c] += static_cast<float>(source[3 * part.source + c]) * part.weight;
        }
        std::copy_n(channel, 3, row.data() + size_t{3} * x);
      }
      for (size_t i = 0; i < bytes; ++i) sum[i] += row[i] * tap.weight;
    }
    for (size_t i = 0; i < bytes; ++i) out.rgb[bytes * y + i] = to_byte(sum[i]);
  }
  return out;
}

}  // namespace di::codec
