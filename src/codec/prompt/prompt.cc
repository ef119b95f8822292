#include "codec/prompt/prompt.h"

#include <atomic>
#include <chrono>
#include <span>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
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

// Stretches of about kSegmentBytes, in order: what a worker takes at a time, so that one whose text is harder, or whose
// core is shared with another process, takes fewer.
std::vector<std::span<const Segment>> groups_of(std::span<const Segment> segments) {
  std::vector<std::span<const Segment>> groups;
  size_t first = 0;
  size_t bytes = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    bytes += segments[i].text.size();
    if (bytes < kSegmentBytes && i + 1 < segments.size()) continue;
    groups.push_back(segments.subspan(first, i + 1 - first));
    first = i + 1;
    bytes = 0;
  }
  return groups;
}

size_t likely_ids(size_t text_bytes) {
  return text_bytes / 3;
}

double seconds_since(std::chrono::steady_clock::time_point& start) {
  const auto now = std::chrono::steady_clock::now();
  return std::chrono::duration<double>(now - std::exchange(start, now)).count();
}

std::vector<TokenId> encode_on(ThreadPool& pool, std::span<const Segment> segments, const Tokenizer& tokenizer,
                               size_t text_bytes, EncodeTimes& times) {
  auto start = std::chrono::steady_clock::now();
  const std::vector<std::span<const Segment>> groups = groups_of(segments);
  struct Part {  // where the ids of a group are
    size_t worker = 0;
    size_t begin = 0;
    size_t end = 0;
  };
  std::vector<Part> parts(groups.size());
  // One list a worker, not one a group: fewer pages are touched for the first time, which costs more than the copy.
  std::vector<std::vector<TokenId>> lists(static_cast<size_t>(pool.size()));
  std::atomic<size_t> next = 0;
  pool.parallel([&](int worker) {
    std::vector<TokenId> list;  // on this worker's stack: each id moves its end, which must share no cache line
    list.reserve(likely_ids(text_bytes) * 5 / 4 / lists.size());
    for (size_t i = next.fetch_add(1); i < groups.size(); i = next.fetch_add(1)) {
      const size_t begin = list.size();
      encode_segments(groups[i], tokenizer, list);
      parts[i] = {static_cast<size_t>(worker), begin, list.size()};
    }
    lists[static_cast<size_t>(worker)] = std::move(list);
  });
  times.encode = seconds_since(start);
  size_t total = 0;
  for (const std::vector<TokenId>& list : lists) total += list.size();
  std::vector<TokenId> ids;
  ids.reserve(total);
  for (const Part& part : parts) {
    const std::span<const TokenId> made = std::span(lists[part.worker]).subspan(part.begin, part.end - part.begin);
    ids.insert(ids.end(), made.begin(), made.end());
  }
  times.join = seconds_since(start);
  return ids;
}

}  // namespace

Result<std::vector<TokenId>> encode_prompt(const RenderedPrompt& prompt, const Tokenizer& tokenizer, ThreadPool* pool,
                                           EncodeTimes* times) {
  EncodeTimes unused;
  EncodeTimes& spent = times == nullptr ? unused : *times;
  auto start = std::chrono::steady_clock::now();
  const bool parallel = pool != nullptr && pool->size() > 1 && prompt.text.size() >= kParallelBytes;
  const std::vector<Segment> segments = DI_TRY(segments_of(prompt, tokenizer, parallel));
  if (parallel) {
    spent.cut = seconds_since(start);
    return encode_on(*pool, segments, tokenizer, prompt.text.size(), spent);
  }
  std::vector<TokenId> ids;
  ids.reserve(likely_ids(prompt.text.size()) + prompt.special_ranges.size());
  encode_segments(segments, tokenizer, ids);
  spent = {0, seconds_since(start), 0};
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
