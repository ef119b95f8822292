#include "server/chat_job.h"

#include <algorithm>

#include "base/json.h"
#include "base/log.h"

namespace di::server {
namespace {

constexpr std::string_view kDone = "data: [DONE]\n\n";
constexpr std::string_view kKeepAlive = ": keep-alive\n\n";

// One server-sent event. The two line separators that JSON allows raw but some readers break lines at are escaped; they
// only occur inside strings.
std::string event_text(std::string_view data) {
  std::string out = "data: ";
  for (size_t at = 0;;) {
    const size_t next = data.find("\xE2\x80", at);
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
  return out;
}

std::vector<codec::TokenLogprob> logprobs_of(const engine::Output& output) {
  std::vector<codec::TokenLogprob> out;
  for (const engine::OutputToken& token : output.tokens) {
    codec::TokenLogprob entry;
    entry.logprob = token.logprob;
    for (const engine::TokenLogprob& top : token.top) entry.top.emplace_back(top.token, top.logprob);
    out.push_back(std::move(entry));
  }
  return out;
}

std::string_view phase_of(const engine::RequestTimes& times) {
  return times.scheduled_ns == 0 ? "queue" : times.first_token_ns == 0 ? "prefill" : "decode";
}

double seconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

}  // namespace

ChatJob::ChatJob(App& app, const Service& service, ExchangeRef exchange, codec::ConvertedRequest request,
                 TimelineRef timeline)
    : app_(app),
      service_(service),
      exchange_(std::move(exchange)),
      request_(std::move(request)),
      timeline_(std::move(timeline)),
      response_id_("chatcmpl-" + random_hex32()),
      created_(app.clock().unix_seconds()),
      streaming_(request_.stream) {
  for (uint32_t i = 0; i < request_.sampling.n; ++i) {
    codec::ResponseInfo info;
    info.id = response_id_;
    info.model = request_.model;
    info.created = created_;
    info.choice_index = i;
    info.deltas = request_.stream;
    choices_.push_back({codec::OutputProcessor(request_, service.tokenizer, std::move(info)), false, false, 0});
  }
  open_choices_ = choices_.size();
}

void ChatJob::start(engine::GenerateRequest generate) {
  app_.metrics().n_param.observe(static_cast<double>(generate.n));
  app_.metrics().max_tokens_param.observe(static_cast<double>(generate.max_tokens));
  last_output_.prompt_tokens = static_cast<int64_t>(generate.prompt.size());
  const auto self = shared_from_this();
  const auto id =
      service_.engine->submit(std::move(generate), [self](engine::Output output) { self->deliver(std::move(output)); });
  if (!id) {
    const engine::Rejection& why = id.error();
    ApiFailure failure = from_error(why.error);
    if (why.reason == engine::RejectReason::kContextLength) failure.kind = ErrorKind::kContextLength;
    if (why.reason == engine::RejectReason::kQueueFull) app_.metrics().rejected("queue_full");
    if (why.retry_after_s > 0) failure.retry_after_s = why.retry_after_s;
    timeline_->finish({http_status(failure.kind), "error"}, app_.clock().now_ns());
    app_.reply_error(*exchange_, failure);
    return;
  }
  engine_id_ = *id;
  begin();
  app_.add_job(self);
  {
    const std::lock_guard lock(mutex_);
    ready_ = true;
    if (!inbox_.empty() || abort_) schedule_locked();
  }
  exchange_->on_disconnect([weak = weak_from_this()] {
    if (const auto job = weak.lock()) job->client_gone();
  });
}

// The request is in the queue: a stream's head and first event go out now, so that the client knows.
void ChatJob::begin() {
  if (streaming_) {
    HttpResponse head;
    head.content_type = "text/event-stream; charset=utf-8";
    head.headers = {{"Cache-Control", "no-cache, no-transform"}, {"X-Accel-Buffering", "no"}};
    exchange_->begin_stream(std::move(head), std::string(kKeepAlive));
  }
  for (Choice& choice : choices_) {
    std::vector<codec::StreamEvent> events;
    choice.processor.ready({static_cast<uint32_t>(last_output_.prompt_tokens), 0}, service_.system_fingerprint, events);
    send_events(events, nullptr);
  }
}

void ChatJob::send(std::string_view data) {
  writable_ = exchange_->write(event_text(data)) && writable_;
}

void ChatJob::deliver(engine::Output output) {
  const std::lock_guard lock(mutex_);
  if (output.finish == engine::FinishReason::kAborted && gone_ && !aborted_) {
    aborted_ = true;
    app_.metrics().aborted(phase_of(output.times), "disconnect");
  }
  inbox_.push_back(std::move(output));
  if (ready_) schedule_locked();
}

void ChatJob::schedule_locked() {
  if (scheduled_) return;
  scheduled_ = true;
  app_.workers().post([self = shared_from_this()] { self->pump(); });
}

void ChatJob::abort(const ApiFailure& failure) {
  const std::lock_guard lock(mutex_);
  abort_ = failure;
  if (ready_) schedule_locked();
}

void ChatJob::client_gone() {
  {
    const std::lock_guard lock(mutex_);
    gone_ = true;
  }
  service_.engine->cancel(engine_id_);
}

void ChatJob::pump() {
  std::vector<engine::Output> outputs;
  std::optional<ApiFailure> aborted;
  {
    const std::lock_guard lock(mutex_);
    outputs.swap(inbox_);
    aborted.swap(abort_);
  }
  try {
    for (engine::Output& output : outputs) {
      if (!done_) take(output);
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

void ChatJob::take(engine::Output& output) {
  Choice& choice = choices_[static_cast<size_t>(output.choice)];
  last_output_ = output;
  if (choice.finished) return;
  if (!output.tokens.empty()) {
    std::vector<TokenId> ids;
    for (const engine::OutputToken& token : output.tokens) ids.push_back(token.token);
    choice.tokens += static_cast<int64_t>(ids.size());
    const std::vector<codec::TokenLogprob> logprobs =
        request_.sampling.logprobs ? logprobs_of(output) : std::vector<codec::TokenLogprob>{};
    std::vector<codec::StreamEvent> events;
    const int64_t begun = app_.clock().now_ns();
    const Result<void> ok = choice.processor.tokens(ids, logprobs, events);
    const int64_t detokenized = app_.clock().now_ns();
    send_events(events, nullptr);
    timeline_->work(Stage::kDetokenize, detokenized - begun);
    timeline_->work(Stage::kSocket, app_.clock().now_ns() - detokenized);
    observe_tokens(ids.size());
    if (!ok) {
      fail(from_error(ok.error()));
      return;
    }
    if (choice.processor.stopped_by_sequence() && output.finish == engine::FinishReason::kNone) {
      service_.engine->cancel(engine_id_, output.choice);
      finish_choice(choice, output);
      return;
    }
  }
  switch (output.finish) {
    case engine::FinishReason::kNone:
      return;
    case engine::FinishReason::kAborted: {
      done_ = true;
      app_.metrics().finished_abort.add();
      report("abort", 499);  // by the client, which is not there to be told
      exchange_->end_stream();
      return;
    }
    case engine::FinishReason::kError: {
      ApiFailure failure = from_error(output.error);
      if (output.constraint_failed) failure.code = "constraint_failed";
      if (output.error.code == Errc::kResourceExhausted) failure.kind = ErrorKind::kQueueTimeout;
      fail(failure);
      return;
    }
    default:
      finish_choice(choice, output);
  }
}

void ChatJob::finish_choice(Choice& choice, const engine::Output& output) {
  std::vector<codec::StreamEvent> events;
  const codec::PromptUsage usage{static_cast<uint32_t>(output.prompt_tokens),
                                 static_cast<uint32_t>(output.cached_tokens)};
  choice.processor.ready(usage, service_.system_fingerprint, events);
  choice.processor.correct_usage(usage);  // the start events went out before the engine looked the prompt up
  if (output.finish == engine::FinishReason::kStop) choice.processor.finish(codec::FinishReason::kStop, events);
  if (output.finish == engine::FinishReason::kLength) choice.processor.finish(codec::FinishReason::kLength, events);
  if (output.finish == engine::FinishReason::kPreempted) {
    choice.insufficient = true;
    choice.processor.finish(codec::FinishReason::kLength, events);
  }
  choice.processor.close(events);
  choice.finished = true;
  --open_choices_;
  send_events(events, &choice);
}

// `finished`: the events end that choice. What the codec cannot know is put into its last event then: a finish reason
// of ours, and with several choices the usage of all of them, in the last one only.
void ChatJob::send_events(std::span<const codec::StreamEvent> events, const Choice* finished) {
  if (!streaming_) return;
  for (size_t i = 0; i < events.size(); ++i) {
    const bool last = finished != nullptr && i + 1 == events.size();
    if (!last || (choices_.size() == 1 && !finished->insufficient)) {
      send(events[i].data);
      continue;
    }
    Result<Json> event = parse_json(events[i].data);
    if (event && finished->insufficient) {
      event->find("choices")->as_array()[0].set("finish_reason", Json("insufficient_system_resource"));
    }
    if (event && choices_.size() > 1) {
      event->set("usage", Json());
      if (open_choices_ == 0) event->set("usage", parse_json(codec::chat_usage_json(total_usage())).value_or(Json()));
    }
    send(event ? to_json(*event) : events[i].data);
  }
}

void ChatJob::complete() {
  done_ = true;
  // Counted and logged before the client can see the end.
  (last_output_.finish == engine::FinishReason::kLength ? app_.metrics().finished_length : app_.metrics().finished_stop)
      .add();
  report(choices_[0].insufficient ? "insufficient_system_resource" : choices_[0].processor.chat_finish_reason(), 200);
  if (streaming_) {
    if (request_.include_usage && service_.codec.policy == codec::ApiPolicy::kExtended) send(usage_chunk());
    exchange_->write(kDone);
    exchange_->end_stream();
    return;
  }
  HttpResponse response;
  response.body = full_body();
  const engine::RequestTimes& times = last_output_.times;
  if (times.first_token_ns > 0) {
    const double queue_ms = seconds(times.scheduled_ns - times.arrival_ns) * 1e3;
    const double prefill_ms = seconds(times.first_token_ns - times.scheduled_ns) * 1e3;
    response.headers.emplace_back("Server-Timing",
                                  fmt::format("queue;dur={:.3f}, prefill;dur={:.3f}", queue_ms, prefill_ms));
  }
  exchange_->reply(std::move(response));
}

void ChatJob::fail(const ApiFailure& failure) {
  done_ = true;
  service_.engine->cancel(engine_id_);
  app_.metrics().finished_error.add();
  if (!streaming_) {
    note_timeline("error", http_status(failure.kind), app_.clock().now_ns());
    app_.reply_error(*exchange_, failure);
    return;
  }
  app_.metrics().error(failure.code.empty() ? default_code(failure.kind) : std::string_view(failure.code));
  report("error", 200);
  send(error_body(failure, ErrorFamily::kOpenAi, exchange_->request().id));
  exchange_->write(kDone);
  exchange_->end_stream();
}

codec::Usage ChatJob::total_usage() const {
  codec::Usage total = choices_[0].processor.usage();
  for (size_t i = 1; i < choices_.size(); ++i) {
    const codec::Usage usage = choices_[i].processor.usage();
    total.completion_tokens += usage.completion_tokens;
    if (usage.reasoning_tokens) total.reasoning_tokens = total.reasoning_tokens.value_or(0) + *usage.reasoning_tokens;
  }
  return total;
}

std::string ChatJob::usage_chunk() const {
  std::string out;
  JsonWriter w(out);
  w.begin_object()
      .key("id")
      .value(response_id_)
      .key("object")
      .value("chat.completion.chunk")
      .key("created")
      .value(created_);
  w.key("model").value(request_.model).key("system_fingerprint").value(service_.system_fingerprint);
  w.key("choices").begin_array().end_array().key("usage").raw(codec::chat_usage_json(total_usage())).end_object();
  return out;
}

std::string ChatJob::full_body() const {
  if (choices_.size() == 1 && !choices_[0].insufficient) return choices_[0].processor.body();
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("id").value(response_id_).key("object").value("chat.completion").key("created").value(created_);
  w.key("model").value(request_.model).key("choices").begin_array();
  for (const Choice& choice : choices_) {
    Result<Json> object = parse_json(choice.processor.chat_choice());
    if (object && choice.insufficient) object->set("finish_reason", Json("insufficient_system_resource"));
    w.raw(object ? to_json(*object) : choice.processor.chat_choice());
  }
  w.end_array().key("usage").raw(codec::chat_usage_json(total_usage()));
  w.key("system_fingerprint").value(service_.system_fingerprint).end_object();
  return out;
}

void ChatJob::observe_tokens(size_t n) {
  const int64_t now = app_.clock().now_ns();
  app_.metrics().generation_tokens.add(n);
  timeline_->tokens(now, static_cast<int64_t>(n));
  if (first_token_ns_ == 0) {
    first_token_ns_ = now;
    app_.metrics().time_to_first_token.observe(seconds(now - exchange_->request().received_ns));
  } else {
    app_.metrics().inter_token_latency.observe(seconds(now - last_token_ns_));
  }
  last_token_ns_ = now;
}

void ChatJob::note_timeline(std::string_view finish, int status, int64_t now) {
  const engine::RequestTimes& times = last_output_.times;
  if (times.arrival_ns > 0 && times.scheduled_ns > 0)
    timeline_->span(Stage::kQueue, times.arrival_ns, times.scheduled_ns);
  if (times.scheduled_ns > 0 && times.first_token_ns > 0) {
    timeline_->span(Stage::kPrefill, times.scheduled_ns, times.first_token_ns,
                    last_output_.prompt_tokens - last_output_.cached_tokens);
  }
  const engine::CacheReport& cache = last_output_.cache;
  const bool from_host = cache.window == kv::SwaOutcome::kHit || cache.window == kv::SwaOutcome::kHitLower;
  const std::string_view reason =
      cache.miss.reason == kv::MissReason::kNone ? std::string_view() : kv::to_string(cache.miss.reason);
  timeline_->cache({from_host ? 0 : last_output_.cached_tokens, from_host ? last_output_.cached_tokens : 0, 0,
                    cache.miss.reason == kv::MissReason::kDiverged ? fmt::format("{} at {}", reason, cache.miss.at)
                                                                   : std::string(reason)});
  timeline_->finish({status, std::string(finish)}, now);
}

// Metrics and the access line, at the end of the request.
void ChatJob::report(std::string_view finish, int status) {
  ServerMetrics& m = app_.metrics();
  const int64_t now = app_.clock().now_ns();
  const HttpRequest& http = exchange_->request();
  const double total = seconds(now - http.received_ns);
  int64_t tokens = 0;
  for (const Choice& choice : choices_) tokens += choice.tokens;
  const engine::RequestTimes& times = last_output_.times;
  note_timeline(finish, status, now);
  m.request_done("/v1/chat/completions", status, total);
  m.prompt_tokens.add(static_cast<uint64_t>(last_output_.prompt_tokens));
  m.prompt_tokens_cached.add(static_cast<uint64_t>(last_output_.cached_tokens));
  m.preemptions_per_request.observe(last_output_.preemptions);
  const double ttft = first_token_ns_ > 0 ? seconds(first_token_ns_ - http.received_ns) : 0;
  const double tpot = tokens > 1 ? seconds(last_token_ns_ - first_token_ns_) / static_cast<double>(tokens - 1) : 0;
  if (finish != "abort" && finish != "error") {
    m.prompt_tokens_per_request.observe(static_cast<double>(last_output_.prompt_tokens));
    m.generation_tokens_per_request.observe(static_cast<double>(tokens));
    m.e2e_latency.observe(total);
    if (tokens > 1) m.time_per_output_token.observe(tpot);
    if (times.scheduled_ns > 0) m.queue_time.observe(seconds(times.scheduled_ns - times.arrival_ns));
    if (times.first_token_ns > 0) {
      m.prefill_time.observe(seconds(times.first_token_ns - times.scheduled_ns));
      m.decode_time.observe(seconds(times.finished_ns - times.first_token_ns));
      m.inference_time.observe(seconds(times.finished_ns - times.scheduled_ns));
    }
  }
  DI_LOG(kInfo,
         "{} chat {} prompt={} cached={} output={} queue={:.1f}ms ttft={:.1f}ms tpot={:.2f}ms e2e={:.1f}ms finish={}",
         http.id, status, last_output_.prompt_tokens, last_output_.cached_tokens, tokens,
         times.scheduled_ns > 0 ? seconds(times.scheduled_ns - times.arrival_ns) * 1e3 : 0.0, ttft * 1e3, tpot * 1e3,
         total * 1e3, finish);
}

}  // namespace di::server
