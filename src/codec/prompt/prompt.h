// Conversation -> prompt text with explicit special tokens -> token ids (recipe.md §1.4, §2). Pure functions.
//
// The text is never searched for special tokens: those that the template puts in are remembered as byte ranges,
// everything else is encoded without the added vocabulary, so text from users can never become a control token.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "codec/conversation.h"
#include "codec/tokenizer/tokenizer.h"

namespace di::codec {

// How each special token is spelled in the tokenizer's added vocabulary. An empty spelling inserts nothing.
struct SpecialSpellings {
  std::string bos = "<｜begin▁of▁sentence｜>";
  std::string eos = "<｜end▁of▁sentence｜>";
  std::string think_start = "<think>";
  std::string think_end = "</think>";
  std::string system = "<｜System｜>";
  std::string user = "<｜User｜>";
  std::string assistant = "<｜Assistant｜>";
  std::string latest_reminder = "<｜latest_reminder｜>";
  std::string dsml = "｜DSML｜";
  std::string image = "<｜image｜>";
  std::string ref = "<｜ref｜>";
  std::string ref_end = "<｜/ref｜>";
  std::string box = "<｜box｜>";
  std::string box_end = "<｜/box｜>";
  std::string point = "<｜point｜>";
  std::string point_end = "<｜/point｜>";
  std::string polygon = "<｜polygon｜>";
  std::string polygon_end = "<｜/polygon｜>";

  // The default spellings, with the image token spelled as this tokenizer has it (<｜deepseek_image｜> in the V4.1
  // release, <｜image｜> elsewhere; recipe.md §1.3).
  static SpecialSpellings for_tokenizer(const Tokenizer& tokenizer);
};

struct RenderedPrompt {
  std::string text;
  // Ascending disjoint byte ranges of `text` that hold explicit special tokens.
  std::vector<std::pair<size_t, size_t>> special_ranges;
  std::vector<ImageSource> image_sources;  // in the order of the placeholders
  // Stretches of `text` whose exact tokens are known (replay.h), ascending and disjoint; special ranges inside them
  // count for nothing.
  struct Replay {
    size_t begin = 0;
    size_t end = 0;
    ReplayRef turn;
  };
  std::vector<Replay> replays;
};

RenderedPrompt render_conversation(const Conversation& conversation, ModelVersion version,
                                   const SpecialSpellings& special = {});

// Where the wall time of one encode_prompt goes, in seconds. Without a pool everything is `encode`.
struct EncodeTimes {
  double cut = 0;     // finding the stretches, on the caller
  double encode = 0;  // on all workers, waking and waiting for them included
  double join = 0;    // putting the workers' ids in order, on the caller
};

// Ids of a rendered prompt. With a pool, texts of 64 KiB and more are cut at proven safe positions and encoded by all
// workers; the ids are the same. Error (kInternal): a special token that the tokenizer does not have. Any number of
// threads may call it at once, but one pool serves one caller at a time (base/thread_pool.h).
Result<std::vector<TokenId>> encode_prompt(const RenderedPrompt& prompt, const Tokenizer& tokenizer,
                                           ThreadPool* pool = nullptr, EncodeTimes* times = nullptr);

// render_conversation, then encode_prompt.
Result<std::vector<TokenId>> encode_conversation(const Conversation& conversation, ModelVersion version,
                                                 const Tokenizer& tokenizer, const SpecialSpellings& special = {},
                                                 ThreadPool* pool = nullptr);

}  // namespace di::codec
