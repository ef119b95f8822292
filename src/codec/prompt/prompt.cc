#include "codec/prompt/prompt.h"

#include <span>

#include "codec/prompt/builder.h"
#include "codec/rust_text.h"
#include "codec/tokenizer/safe_cut.h"

namespace di::codec {

SpecialSpellings SpecialSpellings::for_tokenizer(const Tokenizer& tokenizer) {
  SpecialSpellings special;
  constexpr std::string_view kReleaseImage = "<｜deepseek_image｜>";
  if (tokenizer.added_id(kReleaseImage)) special.image = kReleaseImage;
  return special;
}

RenderedPrompt render_conversation(const Conversation& conversation, ModelVersion version,
                                   const SpecialSpellings& special) {
  RenderedPrompt prompt;
  PromptBuilder builder(special, prompt);
  if (version == ModelVersion::kV4) {
    render_v4(conversation, builder, prompt);
  } else {
    render_v41(conversation, builder, prompt);
  }
  return prompt;
}

namespace {

// A stretch of plain text, one special token, or a turn whose tokens are known.
struct Segment {
  std::string_view text;
  TokenId special = -1;
  const ReplayTokens* replay = nullptr;
};

constexpr size_t kParallelBytes = size_t{64} << 10;  // below this a second thread costs more than it gives
constexpr size_t kSegmentBytes = size_t{16} << 10;

// With `cut`, long stretches are cut at safe positions; the ids stay the same (tokenizer/safe_cut.cc).
void add_plain(std::string_view text, bool cut, std::vector<Segment>& out) {
  while (cut && text.size() > kSegmentBytes) {
    const size_t at = next_safe_cut(text, kSegmentBytes);
    out.push_back({text.substr(0, at)});
    text.remove_prefix(at);
  }
  if (!text.empty()) out.push_back({text});
}

Result<std::vector<Segment>> segments_of(const RenderedPrompt& prompt, const Tokenizer& tokenizer, bool cut) {
  const std::string_view text = prompt.text;
  std::vector<Segment> out;
  size_t at = 0;
  auto replay = prompt.replays.begin();
  const auto add_replays_before = [&](size_t position) {
    for (; replay != prompt.replays.end() && replay->begin <= position; ++replay) {
      add_plain(text.substr(at, replay->begin - at), cut, out);
      out.push_back({{}, -1, replay->turn.get()});
      at = replay->end;
    }
  };
  for (const auto& [begin, end] : prompt.special_ranges) {
    add_replays_before(begin);
    if (begin < at) continue;  // inside a replayed turn
    add_plain(text.substr(at, begin - at), cut, out);
    const std::string_view spelling = text.substr(begin, end - begin);
    const std::optional<TokenId> id = tokenizer.added_id(spelling);
    if (!id) {
      return fail(Errc::kInternal, "special token {} is not in the added vocabulary", rust_debug(spelling));
    }
    out.push_back({spelling, *id});
    at = end;
  }
  add_replays_before(text.size());
  add_plain(text.substr(at), cut, out);
  return out;
}

void encode_segments(std::span<const Segment> segments, const Tokenizer& tokenizer, std::vector<TokenId>& out) {
  for (const Segment& segment : segments) {
    if (segment.replay != nullptr) {
      out.insert(out.end(), segment.replay->ids.begin(), segment.replay->ids.end());
    } else if (segment.special >= 0) {
      out.push_back(segment.special);
    } else {
      tokenizer.encode_plain(segment.text, out);
    }
  }
}

// Shares of about equal size, in order.
std::vector<std::span<const Segment>> shares_of(std::span<const Segment> segments, size_t total, size_t n) {
  std::vector<std::span<const Segment>> shares;
  size_t first = 0;
  size_t bytes = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    bytes += segments[i].text.size();
    if (bytes * n < total * (shares.size() + 1) && i + 1 < segments.size()) continue;
    shares.push_back(segments.subspan(first, i + 1 - first));
    first = i + 1;
  }
  return shares;
}

}  // namespace

Result<std::vector<TokenId>> encode_prompt(const RenderedPrompt& prompt, const Tokenizer& tokenizer, ThreadPool* pool) {
  const bool parallel = pool != nullptr && pool->size() > 1 && prompt.text.size() >= kParallelBytes;
  const std::vector<Segment> segments = DI_TRY(segments_of(prompt, tokenizer, parallel));
  std::vector<TokenId> ids;
  ids.reserve(prompt.text.size() / 3 + prompt.special_ranges.size());
  if (!parallel) {
    encode_segments(segments, tokenizer, ids);
    return ids;
  }
  const auto shares = shares_of(segments, prompt.text.size(), static_cast<size_t>(pool->size()));
  std::vector<std::vector<TokenId>> parts(shares.size());
  pool->for_each(0, static_cast<int64_t>(shares.size()), 1, [&](int64_t i) {
    const auto k = static_cast<size_t>(i);
    encode_segments(shares[k], tokenizer, parts[k]);
  });
  for (const std::vector<TokenId>& part : parts) ids.insert(ids.end(), part.begin(), part.end());
  return ids;
}

Result<std::vector<TokenId>> encode_conversation(const Conversation& conversation, ModelVersion version,
                                                 const Tokenizer& tokenizer, const SpecialSpellings& special,
                                                 ThreadPool* pool) {
  auto ids = encode_prompt(render_conversation(conversation, version, special), tokenizer, pool);
  if (!ids) return fail(ids.error().code, "failed to encode conversation: {}", ids.error().message);
  return ids;
}

}  // namespace di::codec
