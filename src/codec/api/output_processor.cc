// The sequence of one response: start, pieces, flush, finish (recipe.md §4.5).
#include <random>

#include "codec/api/events.h"
#include "codec/codec.h"
#include "codec/parser/output_parser.h"

namespace di::codec {

using api::EndKind;

namespace {

// What the output side needs of a request: not its texts.
ConvertedRequest without_texts(const ConvertedRequest& request) {
  ConvertedRequest out;
  out.api = request.api;
  out.version = request.version;
  out.stream = request.stream;
  out.include_usage = request.include_usage;
  out.continuous_usage = request.continuous_usage;
  out.conversation.thinking_mode = request.conversation.thinking_mode;
  out.parsing = request.parsing;
  out.echo = request.echo;
  return out;
}

}  // namespace

struct OutputProcessor::Impl final : OutputSink {
  ConvertedRequest request;
  TokenizerRef tokenizer;
  api::ResponseState state;
  std::unique_ptr<api::EventWriter> writer;
  std::optional<StreamDecoder> decoder;
  OutputParser parser;
  bool started = false;
  bool done = false;  // nothing more is read
  std::optional<EndKind> end;
  std::string content_text;    // for exact replay, where calls are parsed
  std::string reasoning_text;  // for the same and for counting its tokens
  std::vector<ToolCall> calls;
  std::optional<std::mt19937_64> random;

  Impl(const ConvertedRequest& r, TokenizerRef t, ResponseInfo info)
      : request(without_texts(r)),
        tokenizer(std::move(t)),
        parser(request.parsing, SpecialSpellings().dsml, SpecialSpellings().think_end, *this) {
    state.request = &request;
    state.info = std::move(info);
    switch (request.api) {
      case Api::kChat:
        writer = api::make_chat_writer(state);
        break;
      case Api::kResponses:
        writer = api::make_responses_writer(state);
        break;
      case Api::kMessages:
        writer = api::make_messages_writer(state);
        break;
    }
    if (tokenizer != nullptr) decoder.emplace(*tokenizer, state.info.tokens_as_ids);
    if (state.info.extra_members) state.usage.cache_write_tokens = 0;
  }

  void content(std::string_view text, const LogprobListRef& logprobs) override {
    if (request.parsing.parse_tool_calls) content_text += text;
    writer->content(text, logprobs);
  }

  void reasoning(std::string_view text, const LogprobListRef& logprobs) override {
    reasoning_text += text;
    writer->reasoning(text, logprobs);
  }

  void call_named(std::string_view name) override {
    ToolCall call;
    call.name = name;
    call.id = api::make_tool_call_id(calls.size(), request.conversation.thinking_mode && reasoning_text.empty(),
                                     random_characters());
    calls.push_back(call);
    writer->call_begin(calls.size() - 1, call);
  }

  void call_arguments(std::string_view text) override {
    if (calls.empty()) return;
    calls.back().arguments += text;
    writer->call_arguments(calls.size() - 1, text);
  }

  std::string random_characters() {
    constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    if (!random) {
      std::random_device device;
      const uint64_t seed = state.info.tool_id_seed;
      random.emplace(seed != 0 ? seed : uint64_t{device()} << 32 | device());
    }
    std::uniform_int_distribution<size_t> pick(0, kAlphabet.size() - 1);
    std::string out;
    for (int i = 0; i < 20; ++i) out.push_back(kAlphabet[pick(*random)]);
    return out;
  }

  void start() {
    if (started) return;
    started = true;
    writer->start();
  }

  // False when a stop sequence matched: the rest of the input is ignored.
  bool piece(const Piece& p) {
    start();
    state.usage.completion_tokens += p.tokens;
    parser.feed(p);
    if (!parser.stopped()) return true;
    conclude(EndKind::kStopSequence);
    return false;
  }

  void conclude(EndKind kind) {
    start();
    done = true;
    parser.finish();
    end = kind;
    if (request.conversation.thinking_mode && tokenizer != nullptr) {
      state.usage.reasoning_tokens = static_cast<uint32_t>(tokenizer->encode_full(reasoning_text).size());
    }
    writer->finish(kind, parser.stop_text());
  }
};

OutputProcessor::OutputProcessor(const ConvertedRequest& request, TokenizerRef tokenizer, ResponseInfo info)
    : impl_(std::make_unique<Impl>(request, std::move(tokenizer), std::move(info))) {}
OutputProcessor::~OutputProcessor() = default;
OutputProcessor::OutputProcessor(OutputProcessor&&) noexcept = default;
OutputProcessor& OutputProcessor::operator=(OutputProcessor&&) noexcept = default;

void OutputProcessor::ready(const PromptUsage& usage, std::optional<std::string> system_fingerprint,
                            std::vector<StreamEvent>& out) {
  impl_->state.out = &out;
  if (impl_->done || impl_->started) return;
  impl_->state.usage.prompt = usage;
  impl_->state.fingerprint = std::move(system_fingerprint);
  impl_->start();
}

void OutputProcessor::correct_usage(const PromptUsage& usage) {
  impl_->state.usage.prompt = usage;
}

void OutputProcessor::set_speculation(const SpeculationUsage& usage) {
  impl_->state.usage.speculation = usage;
}

Result<void> OutputProcessor::tokens(std::span<const TokenId> ids,
                                     std::optional<std::span<const TokenLogprob>> logprobs,
                                     std::vector<StreamEvent>& out) {
  impl_->state.out = &out;
  if (impl_->done) return {};
  if (!impl_->decoder) {
    impl_->done = true;
    return fail(Errc::kInternal, "token chunk received without a tokenizer");
  }
  if (logprobs && logprobs->size() != ids.size()) {
    impl_->done = true;
    return fail(Errc::kInternal, "invalid log probabilities: {} log probabilities for {} token IDs", logprobs->size(),
                ids.size());
  }
  impl_->decoder->feed(ids, logprobs.value_or(std::span<const TokenLogprob>()),
                       [&](const Piece& piece) { return impl_->piece(piece); });
  return {};
}

Result<void> OutputProcessor::text(std::string_view content, uint32_t token_count, std::vector<StreamEvent>& out) {
  impl_->state.out = &out;
  if (impl_->done) return {};
  impl_->piece(Piece{content, PieceKind::kText, token_count, nullptr});
  return {};
}

void OutputProcessor::finish(FinishReason reason, std::vector<StreamEvent>& out) {
  impl_->state.out = &out;
  if (impl_->done) return;
  impl_->start();
  EndKind end = EndKind::kStop;
  switch (reason) {
    case FinishReason::kStop:
      end = impl_->calls.empty() ? EndKind::kStop : EndKind::kToolCalls;
      break;
    case FinishReason::kLength:
      end = EndKind::kLength;
      break;
    case FinishReason::kContentFilter:
      end = EndKind::kContentFilter;
      break;
  }
  impl_->conclude(end);
}

void OutputProcessor::close(std::vector<StreamEvent>& out) {
  impl_->state.out = &out;
  if (impl_->done) return;
  impl_->conclude(EndKind::kEndOfStream);
}

bool OutputProcessor::done() const {
  return impl_->done;
}
bool OutputProcessor::stopped_by_sequence() const {
  return impl_->end == EndKind::kStopSequence;
}

std::optional<std::string_view> OutputProcessor::end_of_stream() const {
  if (impl_->request.api == Api::kChat) return "[DONE]";
  return std::nullopt;
}

std::string OutputProcessor::body() const {
  return impl_->writer->body();
}
std::string OutputProcessor::chat_choice() const {
  return impl_->writer->choice();
}
Usage OutputProcessor::usage() const {
  return impl_->state.usage;
}

std::string_view OutputProcessor::chat_finish_reason() const {
  return impl_->end ? api::chat_finish_reason(*impl_->end) : std::string_view();
}

const std::vector<ToolCall>& OutputProcessor::tool_calls() const {
  return impl_->calls;
}

const std::string& OutputProcessor::content_text() const {
  return impl_->content_text;
}
const std::string& OutputProcessor::reasoning_text() const {
  return impl_->reasoning_text;
}

size_t OutputProcessor::held_bytes() const {
  return impl_->parser.held_bytes() + (impl_->decoder ? impl_->decoder->held_bytes() : 0);
}

}  // namespace di::codec
