#include "codec/parser/output_parser.h"

#include "base/json.h"

namespace di::codec {

void OutputParser::feed(const Piece& piece) {
  text_ += piece.text;
  queue_.push_back({piece.text.size(), piece.logprobs});
  machine_.feed(piece.text, piece.kind, [&](const Action& action, size_t length) { segment(action, length); });
  if (has_pending_) take_whole_pieces();
  if (queue_.empty()) {
    text_.clear();
    head_ = 0;
  } else if (head_ > 4096) {
    text_.erase(0, head_);
    head_ = 0;
  }
}

void OutputParser::finish() {
  machine_.finish([&](const Action& action, size_t length) { segment(action, length); });
  apply_pending();
}

void OutputParser::segment(const Action& action, size_t length) {
  if (has_pending_ && pending_ == action) {
    pending_bytes_ += length;
    return;
  }
  apply_pending();
  has_pending_ = true;
  pending_ = action;
  pending_bytes_ = length;
}

void OutputParser::take_whole_pieces() {
  while (!queue_.empty() && queue_.front().bytes <= pending_bytes_) {
    const Waiting piece = std::move(queue_.front());
    queue_.pop_front();
    output(std::string_view(text_).substr(head_, piece.bytes), piece.logprobs);
    head_ += piece.bytes;
    pending_bytes_ -= piece.bytes;
  }
}

void OutputParser::apply_pending() {
  if (!has_pending_) return;
  take_whole_pieces();
  if (pending_bytes_ > 0) {
    Waiting& front = queue_.front();
    output(std::string_view(text_).substr(head_, pending_bytes_), front.logprobs);
    head_ += pending_bytes_;
    front.bytes -= pending_bytes_;
    pending_bytes_ = 0;
  }
  has_pending_ = false;
}

void OutputParser::output(std::string_view text, const LogprobListRef& logprobs) {
  const bool new_run = !has_last_ || !(last_ == pending_);
  has_last_ = true;
  last_ = pending_;
  switch (pending_.kind) {
    case Action::Kind::kSkip:
      break;
    case Action::Kind::kContent:
    case Action::Kind::kJsonOpen:
      sink_->content(text, logprobs);
      break;
    case Action::Kind::kReasoning:
      sink_->reasoning(text, logprobs);
      break;
    case Action::Kind::kSpace:
      sink_->content(" ", logprobs);
      break;
    case Action::Kind::kStopSequence:
      stop_text_ += text;
      if (include_stop_text_) sink_->content(text, logprobs);
      break;
    case Action::Kind::kCallBegin:
      if (new_run) name_.clear();
      break;
    case Action::Kind::kName:
      name_ += text;
      break;
    case Action::Kind::kNameEnd:
      if (new_run) sink_->call_named(name_);
      break;
    case Action::Kind::kArgumentRaw:
      sink_->call_arguments(text);
      break;
    case Action::Kind::kArgumentEscaped:
      escaped_.clear();
      append_json_escaped(escaped_, text);
      sink_->call_arguments(escaped_);
      break;
    case Action::Kind::kArgumentLabel:
      if (new_run) sink_->call_arguments(label_text(pending_.label));
      break;
  }
}

}  // namespace di::codec
