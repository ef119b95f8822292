#include "server/otlp_exporter.h"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <chrono>

#include "base/json.h"
#include "base/log.h"
#include "base/rng.h"
#include "codec/image/url_policy.h"
#include "server/trace_span.h"

namespace di::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

constexpr int64_t kMostWaiting = 4096;  // requests
constexpr size_t kBatch = 256;
constexpr int64_t kTimeoutMs = 10'000;
constexpr int64_t kLastTimeoutMs = 2'000;
constexpr auto kPause = std::chrono::milliseconds(500);  // in which a batch fills

int64_t wall_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

struct OtlpExporter::Target {
  codec::FetchUrl url;
  asio::ssl::context tls{asio::ssl::context::tls_client};

  // The status, or 0 when there was no answer.
  template <class Stream>
  asio::awaitable<int> exchange(Stream& stream, http::request<http::string_body>& message) {
    error_code ec;
    auto token = asio::redirect_error(asio::use_awaitable, ec);
    co_await http::async_write(stream, message, token);
    if (ec) co_return 0;
    beast::flat_buffer buffer;
    http::response<http::string_body> answer;
    co_await http::async_read(stream, buffer, answer, token);
    co_return ec ? 0 : static_cast<int>(answer.result_int());
  }

  asio::awaitable<int> post(asio::io_context& io, http::request<http::string_body>& message) {
    error_code ec;
    auto token = asio::redirect_error(asio::use_awaitable, ec);
    asio::ip::tcp::resolver resolver(io);
    const auto found = co_await resolver.async_resolve(url.host, std::to_string(url.port), token);
    if (ec) co_return 0;
    asio::ssl::stream<beast::tcp_stream> stream(io, tls);
    co_await stream.next_layer().async_connect(found, token);
    if (ec) co_return 0;
    if (!url.tls) co_return co_await exchange(stream.next_layer(), message);
    std::string name = url.host;
    SSL_ctrl(stream.native_handle(), SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name, name.data());
    stream.set_verify_callback(asio::ssl::host_name_verification(url.host));
    co_await stream.async_handshake(asio::ssl::stream_base::client, token);
    if (ec) co_return 0;
    co_return co_await exchange(stream, message);
  }
};

Result<std::unique_ptr<OtlpExporter>> OtlpExporter::create(const OtlpOptions& options, const Clock& clock) {
  Result<codec::FetchUrl> url = codec::parse_fetch_url(options.endpoint);
  if (!url)
    return fail(Errc::kInvalidRequest, "--otlp-endpoint {}: expected a URL like http://host:4318", options.endpoint);
  if (url->target.empty() || url->target == "/") url->target = "/v1/traces";
  auto target = std::make_unique<Target>();
  target->url = std::move(*url);
  if (target->url.tls) {
    target->tls.set_default_verify_paths();
    target->tls.set_verify_mode(asio::ssl::verify_peer);
  }
  return std::unique_ptr<OtlpExporter>(new OtlpExporter(options, std::move(target), clock));
}

OtlpExporter::OtlpExporter(const OtlpOptions& options, std::unique_ptr<Target> target, const Clock& clock)
    : options_(options),
      target_(std::move(target)),
      unix_ns_at_zero_(wall_ns() - clock.now_ns()),
      thread_([this] { run(); }) {}

OtlpExporter::~OtlpExporter() {
  stopping_.store(true);
  queue_.close();
}

void OtlpExporter::request(const HttpRequest& request, const RequestRecord& record, const RequestTimeline& timeline) {
  const std::optional<TraceParent> parent = parse_traceparent(request.header("traceparent"));
  const bool sampled = parent ? parent->sampled : static_cast<double>(random_u64() >> 11) * 0x1p-53 < options_.ratio;
  if (!sampled) return;
  if (waiting_.fetch_add(1) >= kMostWaiting) {
    waiting_.fetch_sub(1);
    counters_.dropped.fetch_add(1);
    return;
  }
  SpanIds ids;
  ids.trace_id = parent ? parent->trace_id : random_hex32();
  if (parent) ids.parent_id = parent->parent_id;
  ids.request_id = fmt::format("{:016x}", random_u64() | 1);
  queue_.push(request_spans(record, timeline.view(), ids, unix_ns_at_zero_));
}

void OtlpExporter::run() {
  while (queue_.wait()) {
    if (!stopping_.load()) queue_.wait_closed_for(kPause);
    std::vector<std::string> spans = queue_.take_all();
    waiting_.fetch_sub(static_cast<int64_t>(spans.size()));
    for (size_t at = 0; at < spans.size(); at += kBatch) {
      const size_t n = std::min(kBatch, spans.size() - at);
      const auto first = spans.begin() + static_cast<std::ptrdiff_t>(at);
      send({first, first + static_cast<std::ptrdiff_t>(n)}, stopping_.load() ? kLastTimeoutMs : kTimeoutMs);
    }
  }
}

void OtlpExporter::send(const std::vector<std::string>& spans, int64_t timeout_ms) {
  http::request<http::string_body> message(http::verb::post, target_->url.target, 11);
  const std::string& host = target_->url.host;
  const std::string named = host.find(':') == std::string::npos ? host : "[" + host + "]";
  message.set(http::field::host, fmt::format("{}:{}", named, target_->url.port));
  message.set(http::field::user_agent, "deepinfer/" DI_VERSION);
  message.set(http::field::content_type, "application/json");
  message.set(http::field::connection, "close");
  for (const auto& [name, value] : options_.headers) message.set(name, header_text(value));
  JsonWriter w(message.body());
  w.begin_object().key("resourceSpans").begin_array().begin_object();
  w.key("resource").begin_object().key("attributes").begin_array();
  const auto attribute = [&](std::string_view key, std::string_view value) {
    w.begin_object().key("key").value(key).key("value").begin_object().key("stringValue").value(value);
    w.end_object().end_object();
  };
  attribute("service.name", options_.service_name);
  attribute("service.version", DI_VERSION);
  w.end_array().end_object().key("scopeSpans").begin_array().begin_object();
  w.key("scope").begin_object().key("name").value("deepinfer").key("version").value(DI_VERSION).end_object();
  w.key("spans").begin_array();
  for (const std::string& each : spans) w.raw(each);
  w.end_array().end_object().end_array().end_object().end_array().end_object();
  message.prepare_payload();

  asio::io_context io;
  int status = 0;
  asio::co_spawn(io, target_->post(io, message), [&](const std::exception_ptr& problem, int found) {
    if (problem == nullptr) status = found;
  });
  io.run_for(std::chrono::milliseconds(timeout_ms));
  if (status / 100 == 2) {
    counters_.sent.fetch_add(spans.size());
    return;
  }
  if (counters_.failed.fetch_add(spans.size()) == 0)
    DI_LOG(kWarn, "traces: {} does not take them (status {}); this is said once", host, status);
}

}  // namespace di::server
