// The MoE of a group of ranks (distributed.md §3). Every rank has all weights but the routed experts, of which it has a
// share, and rows of its own. Per layer: the rows, expert ids and weights of all ranks are exchanged, each rank
// computes the (row, expert) pairs whose expert it has, the fp32 parts go back, and a row's parts are added in the
// order of the router: the bits of one rank with all experts.
//
// The ranks agree once a call, on the host, how many rows each of them has; sizes never come from the device, so that a
// step of one shape can be captured.
#include <algorithm>
#include <array>

#include "model/forward_pass.h"

namespace di::model {

using kernels::DType;
using kernels::Tensor;

namespace {

// Rows of a rank that are exchanged at a time: bounds the parts, k·H fp32 values a row.
constexpr int32_t kRowsAtOnce = 1024;

const std::byte* bytes_at(const void* data, int64_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}
std::byte* bytes_at(void* data, int64_t offset) {
  return static_cast<std::byte*>(data) + offset;
}

}  // namespace

// False: the group has ended. `batch` is null in a draft.
bool Forward::agree(int64_t call, const Batch* batch, int32_t rows, const Tap* tap) {
  const StepShape mine = batch != nullptr ? step_shape(*batch) : StepShape{};
  const bool capturable = batch != nullptr && may_capture(tap) && (rows == 0 || mine.rows > 0);
  enum : size_t { kCall, kRows, kDecoderRows, kCapturable, kShapeRows, kStride, kValues };
  std::array<int64_t, kValues> values{};
  values[kCall] = call;
  values[kRows] = rows;
  values[kDecoderRows] = batch != nullptr ? batch->decoder.size() : rows;
  values[kCapturable] = capturable ? 1 : 0;
  values[kShapeRows] = mine.rows;
  values[kStride] = batch != nullptr ? std::max(mine.stride, batch->block_table_stride) : 0;
  const auto all = options_.group->gather(values);
  if (!all) return false;
  agreed_ = {};
  agreed_.captured = true;
  for (size_t r = 0; r < all->size(); r += kValues) {
    if ((*all)[r + kCall] != call) {
      options_.group->fail(
          {Errc::kInternal, fmt::format("rank {} is in call {} of the forward pass, rank {} in {}",
                                        options_.group->rank(), call, r / kValues, (*all)[r + kCall])});
      return false;
    }
    agreed_.rows.push_back(static_cast<int32_t>((*all)[r + kRows]));
    agreed_.decoder_rows.push_back(static_cast<int32_t>((*all)[r + kDecoderRows]));
    agreed_.captured = agreed_.captured && (*all)[r + kCapturable] != 0;
    agreed_.shape.rows = std::max(agreed_.shape.rows, static_cast<int32_t>((*all)[r + kShapeRows]));
    agreed_.stride = std::max(agreed_.stride, static_cast<int32_t>((*all)[r + kStride]));
  }
  agreed_.shape.stride = agreed_.stride;
  agreed_.captured = agreed_.captured && agreed_.shape.rows > 0;
  if (agreed_.captured) {
    // Every rank fills its rows up to the largest: one graph for all.
    agreed_.rows.assign(agreed_.rows.size(), agreed_.shape.rows);
    agreed_.decoder_rows = agreed_.rows;
  }
  return true;
}

// A step is replayed by all ranks or by none: the least of their states. False: the group has ended.
bool Forward::agree_on_graph(int64_t* state) {
  const auto all = options_.group->gather({state, 1});
  if (!all) return false;
  *state = *std::min_element(all->begin(), all->end());
  return true;
}

// Memory of a device grows while nothing waits for another rank: a driver that has to wait for a device before it gives
// memory away would wait for an exchange that this rank has not begun. So a call of a new size runs once without
// exchanges, and the ranks wait for each other. False: the group has ended.
bool Forward::grow(int64_t call, const std::function<void()>& body) {
  if (backend_.copy_in == nullptr) return true;
  CallSize size{call, 0, 0, 0, agreed_.stride};
  for (size_t r = 0; r < agreed_.rows.size(); ++r) {
    size[1] += agreed_.rows[r];
    size[2] = std::max<int64_t>(size[2], agreed_.rows[r]);
    size[3] = std::max<int64_t>(size[3], agreed_.decoder_rows[r]);
  }
  const auto covers = [&](const CallSize& other) {
    return other[0] == size[0] &&
           std::equal(size.begin() + 1, size.end(), other.begin() + 1, [](int64_t a, int64_t b) { return a <= b; });
  };
  if (std::any_of(grown_.begin(), grown_.end(), covers)) return true;
  ops_ = growing_ops(backend_);
  body();
  ops_ = backend_;
  if (const Result<void> grown = status(); !grown) {
    options_.group->fail(grown.error());
    return false;
  }
  grown_.push_back(size);
  return options_.group->gather({}).has_value();
}

const FfnWeights& Forward::ffn(const LayerPlan& plan) const {
  const int32_t draft = plan.layer - config_.num_hidden_layers;
  return draft < 0 ? weights_.layers[static_cast<size_t>(plan.layer)].ffn
                   : weights_.mtp[static_cast<size_t>(draft)].block.ffn;
}

// The part of a rank without rows of its own: its experts for those of the others.
void Forward::serve(Pass& pass, std::span<const LayerPlan> layers) {
  for (const LayerPlan& plan : layers) {
    const Scope scope(workspace_);
    moe_of_group(pass, plan, ffn(plan), {nullptr, dtype_, 0, config_.hidden_size, config_.hidden_size}, nullptr,
                 nullptr);
  }
}

// The rows [first, first + kRowsAtOnce) of every rank, here.
Forward::GroupRows Forward::collect(const std::vector<int32_t>& rows, int32_t first, int64_t k, const Tensor& y,
                                    const int32_t* ids, const float* weights) {
  const int32_t me = options_.group->rank();
  const int64_t h = config_.hidden_size;
  GroupRows out;
  for (const int32_t n : rows) {
    out.begin.push_back(out.total);
    out.count.push_back(std::clamp<int64_t>(n - first, 0, kRowsAtOnce));
    out.total += out.count.back();
  }
  const int64_t mine = out.count[static_cast<size_t>(me)];
  out.y = activation(out.total, h);
  auto* all_ids = workspace_.array<int32_t>(out.total * k);
  out.ids = all_ids;
  out.weights = fp32(out.total, k);
  std::vector<device::Piece> pieces;
  for (size_t peer = 0; peer < rows.size(); ++peer) {
    const auto add = [&](const void* from, void* to, int64_t row_bytes) {
      pieces.push_back({static_cast<int32_t>(peer), from == nullptr ? nullptr : bytes_at(from, first * row_bytes),
                        mine * row_bytes, bytes_at(to, out.begin[peer] * row_bytes), out.count[peer] * row_bytes});
    };
    add(y.data, out.y.data, h * kernels::size_of(dtype_));
    add(ids, all_ids, k * 4);
    add(weights, out.weights.data, k * 4);
  }
  ops_.exchange({options_.group, pieces.data(), static_cast<int32_t>(pieces.size())}, stream_);
  return out;
}

// The parts of the experts that are here, and those of the others for this rank's rows: rank r's at r·(own rows).
Tensor Forward::parts_of_group(const GroupRows& rows, int64_t k, const FfnWeights& w, const Tensor& parts) {
  const int32_t me = options_.group->rank();
  const int64_t part_bytes = k * config_.hidden_size * 4;
  const int64_t mine = rows.count[static_cast<size_t>(me)];
  ops_.moe_parts({.y = rows.y,
                  .ids = rows.ids,
                  .weights = static_cast<const float*>(rows.weights.data),
                  .k = static_cast<int32_t>(k),
                  .experts = w.table,
                  .n_experts = static_cast<int32_t>(w.experts.size()),
                  .owner = w.owner_table,
                  .rank = me,
                  .form = w.form,
                  .swiglu_limit = static_cast<float>(config_.swiglu_limit),
                  .numerics = numerics_,
                  .local_ids = workspace_.array<int32_t>(rows.total * k),
                  .received = nullptr,
                  .parts = static_cast<float*>(parts.data)},
                 stream_);
  const Tensor back = fp32(mine * options_.group->size(), k * config_.hidden_size);
  std::vector<device::Piece> pieces;
  for (int32_t peer = 0; peer < options_.group->size(); ++peer) {
    if (peer == me) continue;
    const auto p = static_cast<size_t>(peer);
    pieces.push_back({peer, bytes_at(parts.data, rows.begin[p] * part_bytes), rows.count[p] * part_bytes,
                      bytes_at(back.data, peer * mine * part_bytes), mine * part_bytes});
  }
  ops_.exchange({options_.group, pieces.data(), static_cast<int32_t>(pieces.size())}, stream_);
  return back;
}

Tensor Forward::moe_of_group(const Pass& pass, const LayerPlan& plan, const FfnWeights& w, const Tensor& y,
                             const int32_t* ids, const float* weights) {
  const int32_t me = options_.group->rank();
  const int64_t h = config_.hidden_size;
  const int64_t k = plan.experts_per_token;
  const std::vector<int32_t>& rows = plan.layer < schedule_.boundary ? agreed_.rows : agreed_.decoder_rows;
  DI_CHECK(rows[static_cast<size_t>(me)] == y.rows && (y.rows == 0 || pass.rows.n == y.rows),
           "layer {}: rank {} has {} rows, agreed are {}", plan.layer, me, y.rows, rows[static_cast<size_t>(me)]);
  const Tensor out = activation(y.rows, h);
  const int32_t most = *std::max_element(rows.begin(), rows.end());
  for (int32_t first = 0; first < most; first += kRowsAtOnce) {
    const Scope scope(workspace_);
    const GroupRows all = collect(rows, first, k, y, ids, weights);
    const Tensor parts = fp32(all.total, k * h);
    const Tensor back = parts_of_group(all, k, w, parts);
    const int64_t mine = all.count[static_cast<size_t>(me)];
    if (mine == 0) continue;
    const auto my_rows = [&](Tensor t) {
      t.data = bytes_at(t.data, first * t.stride * kernels::size_of(t.dtype));
      t.rows = mine;
      return t;
    };
    const Tensor shared = fp32(mine, h);
    ops_.moe({.y = my_rows(y),
              .ids = nullptr,
              .weights = nullptr,
              .k = 0,
              .experts = nullptr,
              .n_experts = 0,
              .form = w.form,
              .shared = w.shared_experts,
              .swiglu_limit = static_cast<float>(config_.swiglu_limit),
              .numerics = numerics_,
              .out = shared},
             stream_);
    ops_.moe_sum({.ids = ids + first * k,
                  .owner = w.owner_table,
                  .rank = me,
                  .k = static_cast<int32_t>(k),
                  .mine = static_cast<const float*>(parts.data) + all.begin[static_cast<size_t>(me)] * k * h,
                  .back = static_cast<const float*>(back.data),
                  .back_stride = mine * k * h,
                  .shared = shared,
                  .out = my_rows(out)},
                 stream_);
  }
  return out;
}

}  // namespace di::model
