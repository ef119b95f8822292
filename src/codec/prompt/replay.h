// Exact replay of assistant turns with tool calls. Rendering a returned turn from its text need not give the tokens
// that the model produced (other borders between tokens, other layout of the arguments), and then the prefix cache ends
// there. So the tokens of such a turn are kept under its tenant and its first call's id, and used again when the turn
// comes back unchanged.
//
// Bounded: entries leave by age and, least recently used first, by bytes. Thread-safe. Used as
//   after an answer:     store.put(tenant, {output.tool_calls(), output.content_text(), output.reasoning_text()},
//                                  replay_tokens(prompt_ids, output_ids, assistant_id, eos_id, thinking_mode));
//   before encoding:     attach_replays(request.conversation, tenant, store);
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "codec/conversation.h"

namespace di::codec {

struct ReplayOptions {
  size_t max_bytes = size_t{64} << 20;  // of tokens, keys and book-keeping; 0 keeps nothing
  int64_t max_age_s = 3600;
  // Where save() writes and the constructor reads; empty: memory only. It holds tokens of users' texts and is made with
  // access for its owner alone.
  std::string file;
  // What the ids in the file mean (tokenizer, template): one line of text. A file that was written under another one
  // counts as empty.
  std::string identity;
};

// What of a turn the client got, and will send back.
struct ReplayTurn {
  std::vector<ToolCall> calls;
  std::string content;
  std::string reasoning;
};

class ReplayStore {
 public:
  // An unreadable or damaged file counts as empty.
  ReplayStore(ReplayOptions options, const Clock& clock);
  ~ReplayStore();
  ReplayStore(const ReplayStore&) = delete;
  ReplayStore& operator=(const ReplayStore&) = delete;

  // Turns without calls are not kept.
  void put(std::string_view tenant, const ReplayTurn& turn, ReplayTokens tokens);
  // The tokens of this message's turn, if the tenant got a turn whose first call has that id, whose calls are the same
  // as JSON (ids, names and arguments, in order), and whose content and reasoning are the same where the message has
  // them.
  ReplayRef find(std::string_view tenant, const Message& message);
  // Whether find() would give the tokens of a turn that was made while thinking; counts neither as hit nor as miss.
  bool knows(std::string_view tenant, const Message& message);

  // Writes the file, if there is one (whole, then renamed).
  Result<void> save();
  // The same, when something was put since the file was written last and that is at least `seconds` ago.
  Result<void> save_if_older(int64_t seconds);

  struct Stats {
    size_t entries = 0;
    size_t bytes = 0;
    uint64_t hits = 0;
    uint64_t misses = 0;  // messages with calls that were not found or had changed
  };
  Stats stats() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The tokens behind the prompt's last assistant token, then the output, then the end token if it is not there yet.
// Empty when the prompt has no assistant token.
ReplayTokens replay_tokens(std::span<const TokenId> prompt, std::span<const TokenId> output, TokenId assistant,
                           TokenId eos, bool thinking_mode);

// Gives every assistant message of the history with known calls its tokens; returns how many got some.
size_t attach_replays(Conversation& conversation, std::string_view tenant, ReplayStore& store);

}  // namespace di::codec
