#include <algorithm>

#include "structured/compiled.h"

namespace di::structured {

Compiled::Compiled(std::unique_ptr<CompiledImpl> impl) : impl_(std::move(impl)) {}
Compiled::~Compiled() = default;
const std::vector<std::string>& Compiled::warnings() const {
  return impl_->warnings;
}

int64_t Compiled::memory_bytes() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->budget.bytes() + impl_->parser->bytes() + impl_->grammar.bytes();
}

Matcher::Matcher(CompiledRef compiled, std::vector<TokenId> stop_tokens)
    : compiled_(std::move(compiled)), stop_tokens_(std::move(stop_tokens)) {
  CompiledImpl& c = compiled_->impl();
  const TokenId eos = c.vocabulary->specials().eos;
  if (eos >= 0) stop_tokens_.push_back(eos);
  std::ranges::sort(stop_tokens_);
  history_.push_back({c.parser->start(), false});  // known since it was compiled
}

Matcher Matcher::branch() const {
  Matcher out(history_.back());
  out.compiled_ = compiled_;
  out.stop_tokens_ = stop_tokens_;
  out.failed_ = failed_;
  return out;
}

size_t Matcher::mask_words() const {
  return compiled_->impl().vocabulary->mask_words();
}

bool Matcher::is_stop(TokenId id) const {
  return std::ranges::binary_search(stop_tokens_, id);
}

// The caller holds the lock. State kDeadSet: refused.
Matcher::Entry Matcher::next(Entry from, TokenId id) const {
  Parser& p = *compiled_->impl().parser;
  if (from.terminated) return {};
  if (is_stop(id) && p.set(from.state).accepting) return {from.state, true};
  return {p.step_token(from.state, id), false};
}

bool Matcher::needs_mask() const {
  CompiledImpl& c = compiled_->impl();
  const std::lock_guard lock(c.mutex);
  return terminated() || !c.parser->takes_everything(state());
}

namespace {

bool write_mask(CompiledImpl& c, uint32_t state, const std::vector<TokenId>& stops, std::span<uint32_t> row) {
  Parser& p = *c.parser;
  c.begin_work();
  if (!p.make_mask(state)) {
    std::ranges::fill(row, 0U);
    return false;
  }
  p.read_mask(state, row);
  auto set = [&](TokenId id) {
    const auto i = static_cast<uint32_t>(id);
    if (i >> 5U < row.size()) row[i >> 5U] |= 1U << (i & 31U);
  };
  if (p.set(state).accepting) std::ranges::for_each(stops, set);
  return true;
}

}  // namespace

bool Matcher::fill_mask(std::span<uint32_t> row) {
  CompiledImpl& c = compiled_->impl();
  const std::lock_guard lock(c.mutex);
  if (terminated()) {
    std::ranges::fill(row, 0U);
    return true;
  }
  failed_ = failed_ || !write_mask(c, state(), stop_tokens_, row);
  return !failed_;
}

bool Matcher::allowed(TokenId id) const {
  CompiledImpl& c = compiled_->impl();
  const std::lock_guard lock(c.mutex);
  c.begin_work();
  return next(history_.back(), id).state != kDeadSet;
}

size_t Matcher::accept(std::span<const TokenId> ids) {
  CompiledImpl& c = compiled_->impl();
  const std::lock_guard lock(c.mutex);
  for (size_t i = 0; i < ids.size(); ++i) {
    c.begin_work();
    const Entry e = next(history_.back(), ids[i]);
    failed_ = failed_ || c.parser->failed();
    if (e.state == kDeadSet) return i;
    history_.push_back(e);
  }
  return ids.size();
}

bool Matcher::accept_bytes(std::string_view bytes) {
  CompiledImpl& c = compiled_->impl();
  const std::lock_guard lock(c.mutex);
  c.begin_work();
  if (terminated()) return false;
  const SetId to = c.parser->step_bytes(state(), bytes);
  failed_ = failed_ || c.parser->failed();
  if (to == kDeadSet) return false;
  history_.push_back({to, false});
  return true;
}

size_t Matcher::validate(std::span<const TokenId> ids) const {
  CompiledImpl& c = compiled_->impl();
  const std::lock_guard lock(c.mutex);
  Entry e = history_.back();
  for (size_t i = 0; i < ids.size(); ++i) {
    c.begin_work();
    e = next(e, ids[i]);
    if (e.state == kDeadSet) return i;
  }
  return ids.size();
}

size_t Matcher::fill_masks_along(std::span<const TokenId> draft, std::span<uint32_t> rows) {
  CompiledImpl& c = compiled_->impl();
  const std::lock_guard lock(c.mutex);
  const size_t words = rows.size() / (draft.size() + 1);
  std::ranges::fill(rows, UINT32_MAX);
  Entry e = history_.back();
  for (size_t i = 0;; ++i) {
    const auto row = rows.subspan(i * words, words);
    if (e.terminated) {
      std::ranges::fill(row, 0U);
    } else if (!write_mask(c, e.state, stop_tokens_, row)) {
      failed_ = true;
      return i;
    }
    if (i == draft.size()) return i;
    const Entry to = next(e, draft[i]);
    if (to.state == kDeadSet) return i;
    e = to;
  }
}

bool Matcher::rollback(size_t n) {
  if (n > tokens()) return false;
  history_.resize(history_.size() - n);
  return true;
}

void Matcher::reset() {
  history_.resize(1);
}

bool Matcher::accepting() const {
  CompiledImpl& c = compiled_->impl();
  const std::lock_guard lock(c.mutex);
  return c.parser->set(state()).accepting;
}

std::string Matcher::forced_text(size_t limit) const {
  CompiledImpl& c = compiled_->impl();
  const std::lock_guard lock(c.mutex);
  c.begin_work();
  std::string out;
  SetId at = terminated() ? kDeadSet : state();
  while (out.size() < limit && at != kDeadSet) {
    if (c.parser->set(at).accepting || !c.parser->set(at).tokens.empty()) break;
    int only = -1;
    for (int b = 0; b < 256 && only != -2; ++b) {
      if (c.parser->step(at, static_cast<uint8_t>(b)) == kDeadSet) continue;
      only = only == -1 ? b : -2;
    }
    if (only < 0) break;
    out.push_back(static_cast<char>(static_cast<uint8_t>(only)));
    at = c.parser->step(at, static_cast<uint8_t>(only));
  }
  return out;
}

}  // namespace di::structured
