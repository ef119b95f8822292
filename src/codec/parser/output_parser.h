// Segments -> outputs (recipe.md §4.4): decides which text belongs to which event and when an event is due. Pieces wait
// in a queue until the action of all their bytes is known; a piece of two actions is split. One instance per output
// stream; not thread-safe.
#pragma once

#include <deque>
#include <string>
#include <string_view>

#include "codec/parser/machine.h"

namespace di::codec {

// Receives what the output means, in order. Texts are valid during the call.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  virtual void content(std::string_view text, const LogprobListRef& logprobs) = 0;
  virtual void reasoning(std::string_view text, const LogprobListRef& logprobs) = 0;
  virtual void call_named(std::string_view name) = 0;
  virtual void call_arguments(std::string_view text) = 0;  // JSON text
};

class OutputParser {
 public:
  OutputParser(const ParsingOptions& options, const std::string& dsml, const std::string& think_end, OutputSink& sink)
      : machine_(options, dsml, think_end), sink_(&sink), include_stop_text_(options.include_stop_text) {}

  void feed(const Piece& piece);
  void finish();

  bool stopped() const { return machine_.stopped(); }
  const std::string& stop_text() const { return stop_text_; }
  // Bytes whose action is not settled.
  size_t held_bytes() const { return machine_.held_bytes(); }

 private:
  struct Waiting {
    size_t bytes;
    LogprobListRef logprobs;
  };

  void segment(const Action& action, size_t length);
  void take_whole_pieces();
  void apply_pending();
  void output(std::string_view text, const LogprobListRef& logprobs);

  Machine machine_;
  OutputSink* sink_;
  bool include_stop_text_;
  std::string text_;  // bytes of the waiting pieces, from head_
  size_t head_ = 0;
  std::deque<Waiting> queue_;
  bool has_pending_ = false;
  Action pending_;
  size_t pending_bytes_ = 0;
  bool has_last_ = false;
  Action last_;  // action of the piece taken last
  std::string name_;
  std::string stop_text_;
  std::string escaped_;
};

}  // namespace di::codec
