// API keys: who a request comes from, what it may do, and how much of it at once (server.md §2.1). Keys are kept as
// SHA-256 and compared over all of them in constant time. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/sha256.h"
#include "server/errors.h"
#include "server/http.h"

namespace di::server {

enum class Scope : uint8_t { kPublic, kInference, kMetrics, kAdmin };

struct AuthOptions {
  std::vector<std::string> keys;  // key[:tenant[:role[:max_concurrency[:rpm[:tpm]]]]]
  std::string key_file;           // one of them per line; read again when it changes
  bool metrics_auth = false;      // /metrics needs a key too
  std::string kv_secret;          // of cache namespaces
};

class Auth {
 public:
  // Errors: a line that is no key, a file that cannot be read.
  static Result<std::unique_ptr<Auth>> create(AuthOptions options, const Clock& clock);

  // False: everybody may do everything.
  bool required() const;

  // Whether the request may use a route of that scope; fills in its tenant. The failure is a 401 or a 403.
  std::optional<ApiFailure> admit(const HttpRequest& request, Scope scope, RequestContext& context);

  // Counts an inference request against its key's limits; the count goes back with context.ticket. The failure is a
  // 429.
  std::optional<ApiFailure> begin_request(RequestContext& context);
  // Tokens used, against tokens per minute.
  void count_tokens(const std::string& tenant, int64_t tokens);

  // The KV namespace of a request: 32 bytes that no other tenant can reach, whatever the client chooses.
  std::string cache_namespace(std::string_view tenant, std::optional<std::string_view> user_id,
                              std::optional<std::string_view> cache_salt) const;

 private:
  struct Key {
    Sha256 digest{};
    std::string tenant = "default";
    bool inference = true;
    bool metrics = false;
    bool admin = false;
    int64_t max_concurrency = 0;  // 0: no limit
    int64_t rpm = 0;
    int64_t tpm = 0;
  };
  // Of a tenant: the running minute and what is under way.
  struct Usage {
    int64_t minute_ns = 0;
    int64_t requests = 0;
    int64_t tokens = 0;
    int64_t running = 0;
  };

  Auth(AuthOptions options, const Clock& clock) : options_(std::move(options)), clock_(clock) {}
  static Result<Key> parse_key(std::string_view line);
  Result<void> read_file(std::vector<Key>& out) const;
  void reload_if_changed();
  const Key* find(std::string_view key) const;
  Usage& usage_of(const std::string& tenant);

  const AuthOptions options_;
  const Clock& clock_;
  mutable std::mutex mutex_;  // guards the members below
  std::vector<Key> fixed_;
  std::vector<Key> keys_;
  std::map<std::string, Usage> usage_;
  int64_t file_stamp_ = 0;
  int64_t next_look_ns_ = 0;
};

}  // namespace di::server
