#include "server/auth.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <fstream>

#include "base/log.h"

namespace di::server {
namespace {

constexpr int64_t kMinuteNs = 60 * kNsPerSecond;

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> out;
  for (;;) {
    const size_t end = text.find(at);
    out.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return out;
    text.remove_prefix(end + 1);
  }
}

// The file's time of change in nanoseconds; 0 when it is not there.
int64_t stamp_of(const std::string& path) {
  struct stat info{};
  if (stat(path.c_str(), &info) != 0) return 0;
  return info.st_mtim.tv_sec * kNsPerSecond + info.st_mtim.tv_nsec;
}

bool equal_digests(const Sha256& a, const Sha256& b) {
  uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference = static_cast<uint8_t>(difference | (a[i] ^ b[i]));
  return difference == 0;
}

// Authorization wins over x-api-key.
std::optional<std::string> presented_key(const HttpRequest& request) {
  const std::string_view authorization = request.header("authorization");
  if (!authorization.empty()) {
    constexpr std::string_view kBearer = "bearer ";
    if (authorization.size() <= kBearer.size() ||
        !equal_ignoring_case(authorization.substr(0, kBearer.size()), kBearer))
      return std::nullopt;
    return std::string(authorization.substr(kBearer.size()));
  }
  const std::string_view key = request.header("x-api-key");
  if (key.empty()) return std::nullopt;
  return std::string(key);
}

void append_lp(std::string& out, std::optional<std::string_view> text) {
  const auto length = static_cast<uint32_t>(text ? text->size() : 0);
  for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(length >> shift & 0xFFU));
  if (text) out += *text;
}

}  // namespace

Result<Auth::Key> Auth::parse_key(std::string_view line) {
  const std::vector<std::string_view> parts = split(line, ':');
  Key key;
  if (parts[0].empty()) return fail(Errc::kInvalidRequest, "an API key is empty");
  if (parts.size() > 6)
    return fail(Errc::kInvalidRequest,
                "an API key has {} fields, expected key[:tenant[:role[:max_concurrency[:rpm[:tpm]]]]]", parts.size());
  key.digest = sha256(parts[0]);
  if (parts.size() > 1 && !parts[1].empty()) key.tenant = parts[1];
  if (parts.size() > 2 && !parts[2].empty()) {
    key.inference = false;
    for (const std::string_view role : split(parts[2], '+')) {
      if (role == "inference") {
        key.inference = true;
      } else if (role == "metrics") {
        key.metrics = true;
      } else if (role == "admin") {
        key.admin = key.inference = key.metrics = true;
      } else {
        return fail(Errc::kInvalidRequest, "the role of an API key is `{}`, expected inference, metrics or admin",
                    role);
      }
    }
  }
  int64_t* const limits[] = {&key.max_concurrency, &key.rpm, &key.tpm};
  for (size_t i = 3; i < parts.size(); ++i) {
    if (parts[i].empty()) continue;
    const char* end = parts[i].data() + parts[i].size();
    if (std::from_chars(parts[i].data(), end, *limits[i - 3]).ptr != end || *limits[i - 3] < 0)
      return fail(Errc::kInvalidRequest, "a limit of an API key is `{}`, expected a number of at least 0", parts[i]);
  }
  return key;
}

Result<void> Auth::read_file(std::vector<Key>& out) const {
  std::ifstream file(options_.key_file);
  if (!file) return fail(Errc::kNotFound, "cannot read the API keys in {}", options_.key_file);
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (line.empty() || line[0] == '#') continue;
    Result<Key> key = parse_key(line);
    if (!key) return fail(Errc::kInvalidRequest, "{}:{}: {}", options_.key_file, number, key.error().message);
    out.push_back(std::move(*key));
  }
  return {};
}

Result<std::unique_ptr<Auth>> Auth::create(AuthOptions options, const Clock& clock) {
  std::unique_ptr<Auth> out(new Auth(std::move(options), clock));
  for (const std::string& key : out->options_.keys) out->fixed_.push_back(DI_TRY(parse_key(key)));
  out->keys_ = out->fixed_;
  if (!out->options_.key_file.empty()) {
    out->file_stamp_ = stamp_of(out->options_.key_file);
    DI_TRY(out->read_file(out->keys_));
  }
  return out;
}

bool Auth::required() const {
  const std::lock_guard lock(mutex_);
  return !keys_.empty() || !options_.key_file.empty();
}

// With mutex_ held. A file that became unreadable or wrong leaves the keys as they were.
void Auth::reload_if_changed() {
  if (options_.key_file.empty() || clock_.now_ns() < next_look_ns_) return;
  next_look_ns_ = clock_.now_ns() + kNsPerSecond;
  const int64_t stamp = stamp_of(options_.key_file);
  if (stamp == file_stamp_) return;
  std::vector<Key> keys = fixed_;
  if (const Result<void> ok = read_file(keys); !ok) {
    DI_LOG(kError, "the API keys stay as they were: {}", ok.error().message);
    return;
  }
  file_stamp_ = stamp;
  keys_ = std::move(keys);
  DI_LOG(kInfo, "{}: {} API keys", options_.key_file, keys_.size());
}

const Auth::Key* Auth::find(std::string_view key) const {
  const Sha256 digest = sha256(key);
  const Key* found = nullptr;
  for (const Key& candidate : keys_) {
    if (equal_digests(candidate.digest, digest)) found = &candidate;
  }
  return found;
}

std::optional<ApiFailure> Auth::admit(const HttpRequest& request, Scope scope, RequestContext& context) {
  const std::lock_guard lock(mutex_);
  reload_if_changed();
  if (keys_.empty() && options_.key_file.empty()) return std::nullopt;
  context.admin = false;
  if (scope == Scope::kMetrics && !options_.metrics_auth) scope = Scope::kPublic;
  const std::optional<std::string> given = presented_key(request);
  const Key* key = given ? find(*given) : nullptr;
  if (key != nullptr) {
    context.tenant = key->tenant;
    context.admin = key->admin;
  }
  if (scope == Scope::kPublic) return std::nullopt;
  if (key == nullptr)
    return ApiFailure{ErrorKind::kUnauthorized, given ? "the API key is not valid" : "an API key is needed", {}, {}, 0};
  const bool allowed = scope == Scope::kAdmin ? key->admin : scope == Scope::kMetrics ? key->metrics : key->inference;
  if (allowed) return std::nullopt;
  return ApiFailure{ErrorKind::kForbidden, "the API key has no permission for this route", {}, {}, 0};
}

// With mutex_ held.
Auth::Usage& Auth::usage_of(const std::string& tenant) {
  Usage& usage = usage_[tenant];
  const int64_t now = clock_.now_ns();
  if (usage.minute_ns == 0 || now - usage.minute_ns >= kMinuteNs) {
    usage.minute_ns = now;
    usage.requests = usage.tokens = 0;
  }
  return usage;
}

std::optional<ApiFailure> Auth::begin_request(RequestContext& context) {
  const std::lock_guard lock(mutex_);
  Key limits;
  bool limited = false;
  for (const Key& key : keys_) {
    if (key.tenant != context.tenant || key.max_concurrency + key.rpm + key.tpm == 0) continue;
    limits = key;
    limited = true;
  }
  if (!limited) return std::nullopt;
  Usage& usage = usage_of(context.tenant);
  const auto left = static_cast<int32_t>((usage.minute_ns + kMinuteNs - clock_.now_ns()) / kNsPerSecond + 1);
  const auto over = [](std::string_view what, int64_t limit, int32_t retry_after_s) {
    return ApiFailure{
        ErrorKind::kRateLimited, fmt::format("the limit of {} {} is reached", limit, what), {}, {}, retry_after_s};
  };
  if (limits.max_concurrency > 0 && usage.running >= limits.max_concurrency)
    return over("requests at once", limits.max_concurrency, 1);
  if (limits.rpm > 0 && usage.requests >= limits.rpm) return over("requests per minute", limits.rpm, left);
  if (limits.tpm > 0 && usage.tokens >= limits.tpm) return over("tokens per minute", limits.tpm, left);
  ++usage.requests;
  ++usage.running;
  context.ticket = std::shared_ptr<void>(nullptr, [this, tenant = context.tenant](void*) {
    const std::lock_guard release(mutex_);
    --usage_[tenant].running;
  });
  return std::nullopt;
}

void Auth::count_tokens(const std::string& tenant, int64_t tokens) {
  const std::lock_guard lock(mutex_);
  const auto found = usage_.find(tenant);
  if (found != usage_.end()) found->second.tokens += tokens;
}

std::string Auth::cache_namespace(std::string_view tenant, std::optional<std::string_view> user_id,
                                  std::optional<std::string_view> cache_salt) const {
  std::string message;
  append_lp(message, tenant);
  append_lp(message, user_id);
  append_lp(message, cache_salt);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  HMAC(EVP_sha256(), options_.kv_secret.data(), static_cast<int>(options_.kv_secret.size()),
       reinterpret_cast<const unsigned char*>(message.data()), message.size(), digest, &size);  // NOLINT: OpenSSL's API
  return {reinterpret_cast<const char*>(digest), size};                                         // NOLINT: OpenSSL's API
}

}  // namespace di::server
