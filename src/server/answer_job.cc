#include "server/answer_job.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"

namespace di::server {
namespace {

double seconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

std::string_view phase_of(const engine::RequestTimes& times) {
  return times.scheduled_ns == 0 ? "queue" : times.first_token_ns == 0 ? "prefill" : "decode";
}

// One server-sent event. The two line separators that JSON allows raw but some readers break lines at are escaped; they
// only occur inside strings.
void append_event(std::string& out, std::string_view name, std::string_view data) {
  if (!name.empty()) out.append("event: ").append(name).append("\n");
  out += "data: ";
  for (std::size_t at = 0;;) {
    const std::size_t next = data.find("\xE2\x80", at);
    if (next == std::string_view::npos || next + 2 >= data.size()) {
      out += data.substr(at);
      break;
    }
    out += data.substr(at, next - at);
    const char third = data[next + 2];
    if (third == '\xA8' || third == '\xA9') {
      out += third == '\xA8' ? "\\u2028" : "\\u2029";
    } else {
      out += data.substr(next, 3);
    }
    at = next + 3;
  }
  out += "\n\n";
}

}  // namespace

AnswerJob::AnswerJob(App& app, const Service& service, ExchangeRef exchange, RequestRecord record, TimelineRef timeline)
    : app_(app),
      service_(service),
      exchange_(std::move(exchange)),
      timeline_(std::move(timeline)),
      record_(std::move(record)) {}

void AnswerJob::start(std::vector<engine::GenerateRequest> prompts) {
  choices_per_prompt_ = static_cast<std::size_t>(prompts[0].n);
  choices_.resize(prompts.size() * choices_per_prompt_);
  open_choices_ = choices_.size();
  for (const engine::GenerateRequest& prompt : prompts) {
    prompt_lengths_.push_back(static_cast<int64_t>(prompt.prompt.size()));
    prompt_tokens_ += prompt_lengths_.back();
  }
  app_.metrics().n_param.observe(static_cast<double>(prompts[0].n));
  app_.metrics().max_tokens_param.observe(static_cast<double>(prompts[0].max_tokens));
  {
    const std::lock_guard lock(mutex_);
    record_.n = prompts[0].n;
    record_.max_tokens = prompts[0].max_tokens;
    record_.temperature = prompts[0].sampling.temperature;
    record_.top_p = prompts[0].sampling.top_p;
    record_.prompt_tokens = prompt_tokens_;
    record_.queued_ns = app_.clock().now_ns();
  }
  const auto self = shared_from_this();
  std::vector<engine::RequestId> ids;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto id = service_.engine->submit(std::move(prompts[i]),
                                            [self, i](engine::Output output) { self->deliver(i, std::move(output)); });
    if (id) {
      ids.push_back(*id);
      continue;
    }
    for (const engine::RequestId earlier : ids) service_.engine->cancel(earlier);
    const engine::Rejection& why = id.error();
    ApiFailure failure = from_error(why.error);
    if (why.reason == engine::RejectReason::kContextLength) failure.kind = ErrorKind::kContextLength;
    if (why.reason == engine::RejectReason::kQueueFull) app_.metrics().rejected("queue_full");
    if (why.retry_after_s > 0) failure.retry_after_s = why.retry_after_s;
    timeline_->finish({http_status(failure.kind), "error"}, app_.clock().now_ns());
    app_.reply_error(*exchange_, failure);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    engine_ids_ = std::move(ids);
  }
  app_.add_job(self);  // first: a client that sees the head of its stream may cancel it
  if (app_.config().early_headers || !streaming()) begin();
  {
    const std::lock_guard lock(mutex_);
    ready_ = true;
    if (!inbox_.empty() || abort_) schedule_locked();
  }
  exchange_->on_disconnect([weak = weak_from_this()] {
    if (const auto job = weak.lock()) job->client_gone();
  });
}

// A stream's head and first event: with the request's place in the queue, so that the client knows, or with its first
// token, so that everything that goes wrong before has a status of its own.
void AnswerJob::begin() {
  begun_ = true;
  if (streaming()) {
    HttpResponse head;
    head.content_type = "text/event-stream; charset=utf-8";
    head.headers = {{"Cache-Control", "no-cache, no-transform"}, {"X-Accel-Buffering", "no"}};
    exchange_->begin_stream(std::move(head), std::string(keep_alive()));
  } else if (app_.config().nonstream_keep_alive) {
    exchange_->begin_stream({}, "\n");
    whole_body_begun_ = true;
  }
  write_start();
}

void AnswerJob::send(std::string_view name, std::string_view data) {
  if (!streaming()) return;
  const int64_t begun = app_.clock().now_ns();
  std::string event;
  event.reserve(data.size() + name.size() + 24);
  append_event(event, name, data);
  send_raw(event);
  serialize_ns_ += app_.clock().now_ns() - begun;
}

void AnswerJob::send_raw(std::string_view bytes) {
  writable_ = exchange_->write(bytes) && writable_;
}

void AnswerJob::deliver(std::size_t prompt, engine::Output output) {
  const std::lock_guard lock(mutex_);
  if (output.finish == engine::FinishReason::kAborted && gone_ && !aborted_) {
    aborted_ = true;
    app_.metrics().aborted(phase_of(output.times), "disconnect");
  }
  const bool last = output.finish != engine::FinishReason::kNone;
  held_tokens_ += static_cast<int64_t>(output.tokens.size());
  inbox_.push_back({prompt, std::move(output)});
  if (!last && started_ && must_wait()) return;
  started_ = true;
  held_tokens_ = 0;
  if (app_.config().stream_interval_ms > 0) passed_on_ns_ = app_.clock().now_ns();
  if (ready_) schedule_locked();
}

// With an interval, tokens after the first wait until there are enough of them or the time is over.
bool AnswerJob::must_wait() const {
  const ServerConfig& config = app_.config();
  if (config.stream_interval_ms == 0) return held_tokens_ < config.stream_interval;
  if (config.stream_interval > 1 && held_tokens_ >= config.stream_interval) return false;
  return app_.clock().now_ns() - passed_on_ns_ < config.stream_interval_ms * kNsPerMs;
}

void AnswerJob::schedule_locked() {
  if (scheduled_) return;
  scheduled_ = true;
  app_.workers().post([self = shared_from_this()] { self->pump(); });
}

void AnswerJob::abort(const ApiFailure& failure) {
  const std::lock_guard lock(mutex_);
  abort_ = failure;
  if (ready_) schedule_locked();
}

void AnswerJob::cancel() {
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
  }
  cancel_engine();
}

RequestRecord AnswerJob::record() const {
  const std::lock_guard lock(mutex_);
  return record_;
}

void AnswerJob::client_gone() {
  {
    const std::lock_guard lock(mutex_);
    gone_ = true;
  }
  cancel_engine();
}

void AnswerJob::cancel_engine() {
  std::vector<engine::RequestId> ids;
  {
    const std::lock_guard lock(mutex_);
    ids = engine_ids_;
  }
  for (const engine::RequestId id : ids) service_.engine->cancel(id);
}

void AnswerJob::pump() {
  std::vector<Delivery> deliveries;
  std::optional<ApiFailure> aborted;
  {
    const std::lock_guard lock(mutex_);
    deliveries.swap(inbox_);
    aborted.swap(abort_);
  }
  if (app_.config().stream_interval > 1 || app_.config().stream_interval_ms > 0) join(deliveries);
  try {
    for (Delivery& delivery : deliveries) {
      if (!done_) take(delivery);
    }
    if (!done_ && aborted) fail(*aborted);
    if (!done_ && open_choices_ == 0) complete();
    if (!done_ && !writable_) client_gone();
  } catch (const std::exception& e) {
    DI_LOG(kError, "{}: {}", exchange_->request().id, e.what());
    if (!done_) fail({ErrorKind::kInternal, "internal error", {}, {}, 0});
  }
  const std::lock_guard lock(mutex_);
  scheduled_ = false;
  if (!inbox_.empty() || abort_) schedule_locked();
}

// What waited for each other goes out together: one delivery for each choice.
void AnswerJob::join(std::vector<Delivery>& deliveries) {
  std::vector<Delivery> out;
  for (Delivery& next : deliveries) {
    const auto same = std::find_if(out.begin(), out.end(), [&](const Delivery& one) {
      return one.prompt == next.prompt && one.output.choice == next.output.choice;
    });
    if (same == out.end()) {
      out.push_back(std::move(next));
      continue;
    }
    engine::Output& first = same->output;
    std::vector<engine::OutputToken> tokens = std::move(first.tokens);
    tokens.insert(tokens.end(), std::make_move_iterator(next.output.tokens.begin()),
                  std::make_move_iterator(next.output.tokens.end()));
    auto prompt_logprobs = std::move(first.prompt_logprobs);  // in the first of a choice only
    first = std::move(next.output);
    first.tokens = std::move(tokens);
    if (first.prompt_logprobs.empty()) first.prompt_logprobs = std::move(prompt_logprobs);
  }
  deliveries.swap(out);
}

void AnswerJob::take(Delivery& delivery) {
  const engine::Output& output = delivery.output;
  const std::size_t index = delivery.prompt * choices_per_prompt_ + static_cast<std::size_t>(output.choice);
  Choice& choice = choices_[index];
  {
    const std::lock_guard lock(mutex_);
    record_.scheduled_ns = output.times.scheduled_ns;
    record_.first_token_ns = output.times.first_token_ns;
    record_.finished_ns = output.times.finished_ns;
    record_.preemptions = output.preemptions;
    if (output.finish != engine::FinishReason::kNone) {
      record_.draft_rounds += output.draft_rounds;
      record_.drafts_accepted += output.drafts_accepted;
    }
  }
  if (choice.finished) return;
  const bool answers = !output.tokens.empty() ||
                       (output.finish != engine::FinishReason::kNone && output.finish != engine::FinishReason::kError);
  if (answers && !begun_) begin();
  choice.drafts = {static_cast<uint64_t>(output.drafts_verified), static_cast<uint64_t>(output.drafts_accepted)};
  if (choice.tokens == 0 && output.choice == 0 && !output.tokens.empty()) {
    cached_tokens_ += output.cached_tokens;
    if (delivery.prompt == 0) miss_reason_ = to_string(output.cache.miss.reason);
  }
  if (!output.tokens.empty()) {
    choice.tokens += static_cast<int64_t>(output.tokens.size());
    const int64_t begun = app_.clock().now_ns();
    const int64_t sending = serialize_ns_;
    const Result<void> ok = write_tokens(index, output);
    const int64_t took = app_.clock().now_ns() - begun - (serialize_ns_ - sending);
    detokenize_ns_ += took;
    timeline_->work(Stage::kDetokenize, took);
    observe_tokens(output.tokens.size());
    if (!ok) return fail(from_error(ok.error()));
    if (stopped(index) && output.finish == engine::FinishReason::kNone) {
      engine::RequestId id;
      {
        const std::lock_guard lock(mutex_);
        id = engine_ids_[delivery.prompt];
      }
      service_.engine->cancel(id, output.choice);
      finish_choice(index, ChoiceEnd::kStop, output);
      return;
    }
  }
  switch (output.finish) {
    case engine::FinishReason::kNone:
      return;
    case engine::FinishReason::kStop:
      return finish_choice(index, ChoiceEnd::kStop, output);
    case engine::FinishReason::kLength:
      return finish_choice(index, ChoiceEnd::kLength, output);
    case engine::FinishReason::kPreempted:
      return finish_choice(index, ChoiceEnd::kInsufficient, output);
    case engine::FinishReason::kError: {
      ApiFailure failure = from_error(output.error);
      if (output.constraint_failed) failure.code = "constraint_failed";
      if (output.transfer_failed) failure = {ErrorKind::kOverloaded, output.error.message, {}, {}, 1};
      const bool waited = output.times.scheduled_ns == 0;  // else the device had no memory for its step
      if (waited && output.error.code == Errc::kResourceExhausted) failure.kind = ErrorKind::kQueueTimeout;
      return fail(failure);
    }
    case engine::FinishReason::kAborted:
      break;
  }
  bool cancelled = false;
  {
    const std::lock_guard lock(mutex_);
    cancelled = cancelled_ && !gone_;
    if (cancelled && !aborted_) {
      aborted_ = true;
      app_.metrics().aborted(phase_of(output.times), "cancelled");
    }
  }
  if (cancelled) return finish_choice(index, ChoiceEnd::kCancelled, output);
  done_ = true;
  app_.metrics().finished_abort.add();
  report("abort", 499, "client_gone");  // by the client, which is not there to be told
  exchange_->end_stream();
}

void AnswerJob::finish_choice(std::size_t index, ChoiceEnd end, const engine::Output& output) {
  choices_[index].finished = true;
  --open_choices_;
  last_finish_ = end == ChoiceEnd::kLength      ? engine::FinishReason::kLength
                 : end == ChoiceEnd::kCancelled ? engine::FinishReason::kAborted
                                                : engine::FinishReason::kStop;
  write_end(index, end, output);
}

void AnswerJob::complete() {
  done_ = true;
  // Counted and logged before the client can see the end.
  ServerMetrics& m = app_.metrics();
  (last_finish_ == engine::FinishReason::kLength    ? m.finished_length
   : last_finish_ == engine::FinishReason::kAborted ? m.finished_abort
                                                    : m.finished_stop)
      .add();
  std::string whole = streaming() ? std::string() : body();
  report(finish_reason(), 200, {});
  if (streaming()) {
    write_stream_end();
    exchange_->end_stream();
    return;
  }
  if (whole_body_begun_) {
    exchange_->write(whole);
    exchange_->end_stream();
    return;
  }
  HttpResponse response;
  response.body = std::move(whole);
  const RequestRecord r = record();
  if (r.first_token_ns > 0) {
    response.headers.emplace_back("Server-Timing", fmt::format("queue;dur={:.3f}, prefill;dur={:.3f}",
                                                               seconds(r.scheduled_ns - r.queued_ns) * 1e3,
                                                               seconds(r.first_token_ns - r.scheduled_ns) * 1e3));
  }
  if (service_.engine->info().prefix_cache)
    response.headers.emplace_back("X-Cached-Tokens", std::to_string(cached_tokens_));
  exchange_->reply(std::move(response));
}

void AnswerJob::fail(const ApiFailure& failure) {
  done_ = true;
  cancel_engine();
  app_.metrics().finished_error.add();
  const std::string_view code = failure.code.empty() ? default_code(failure.kind) : std::string_view(failure.code);
  const ErrorFamily family = error_family(exchange_->request().path);
  app_.metrics().error(code);
  const bool begun = (streaming() && begun_) || whole_body_begun_;
  report("error", begun ? 200 : http_status(failure.kind, family), code);
  if (!begun) {
    exchange_->reply(error_response(failure, family, exchange_->request().id));
    return;
  }
  if (whole_body_begun_) {
    exchange_->write(error_body(failure, family, exchange_->request().id));
  } else {
    write_stream_error(failure);
  }
  exchange_->end_stream();
}

std::optional<codec::SpeculationUsage> AnswerJob::speculation_usage() const {
  if (!app_.config().usage_details) return std::nullopt;
  codec::SpeculationUsage sum;
  for (const Choice& choice : choices_) {
    sum.verified_tokens += choice.drafts.verified_tokens;
    sum.accepted_tokens += choice.drafts.accepted_tokens;
  }
  return sum;
}

void AnswerJob::observe_tokens(std::size_t n) {
  const int64_t now = app_.clock().now_ns();
  app_.metrics().generation_tokens.add(n);
  timeline_->tokens(now, static_cast<int64_t>(n));
  if (last_token_ns_ == 0) {
    app_.metrics().time_to_first_token.observe(seconds(now - exchange_->request().received_ns));
  } else {
    app_.metrics().inter_token_latency.observe(seconds(now - last_token_ns_));
  }
  last_token_ns_ = now;
  const std::lock_guard lock(mutex_);
  record_.output_tokens += static_cast<int64_t>(n);
  if (record_.first_sent_ns == 0) record_.first_sent_ns = now;
}

void AnswerJob::report(std::string_view finish, int status, std::string_view error_code) {
  const int64_t now = app_.clock().now_ns();
  RequestRecord r;
  {
    const std::lock_guard lock(mutex_);
    record_.finish = finish;
    record_.status = status;
    record_.error = error_code;
    record_.sent_ns = now;
    record_.cached_tokens = cached_tokens_;
    record_.reasoning_tokens = reasoning_tokens();
    record_.detokenize_ns = detokenize_ns_;
    record_.serialize_ns = serialize_ns_;
    for (const Choice& choice : choices_) record_.longest_output = std::max(record_.longest_output, choice.tokens);
    r = record_;
  }
  if (r.scheduled_ns > 0) timeline_->span(Stage::kQueue, r.queued_ns, r.scheduled_ns);
  if (r.first_token_ns > 0)
    timeline_->span(Stage::kPrefill, r.scheduled_ns, r.first_token_ns, r.prompt_tokens - r.cached_tokens);
  timeline_->cache({r.cached_tokens, 0, 0, miss_reason_ == "none" ? std::string() : miss_reason_});
  timeline_->finish({status, r.finish}, now);
  app_.request_finished(r, last_token_ns_);
  if (OtlpExporter* traces = app_.traces()) traces->request(exchange_->request(), r, *timeline_);
}

}  // namespace di::server
