// Certificates of the listener (server.md §2): read at the start, and again when one of the files has changed.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/result.h"

struct ssl_st;
struct ssl_ctx_st;

namespace di::server {

// PEM files. An empty certificate: no TLS.
struct TlsFiles {
  std::string certificate;  // the server's, then those that lead to its authority
  std::string key;
  std::string client_authority;  // not empty: clients must show a certificate signed by one of these
};

// Used by the network's thread only.
class TlsListener {
 public:
  // Errors: kInvalidRequest, naming the option and the file.
  static Result<std::unique_ptr<TlsListener>> create(const TlsFiles& files, const Clock& clock);

  // A session for a new connection, owned by the caller; null when OpenSSL has no memory. Looks at the files at most
  // once a second; what cannot be read then is logged, and the certificates from before stay.
  ssl_st* new_session();

 private:
  TlsListener(const TlsFiles& files, const Clock& clock) : files_(files), clock_(clock) {}
  Result<void> load();
  std::array<int64_t, 3> change_times() const;

  const TlsFiles files_;
  const Clock& clock_;
  std::shared_ptr<ssl_ctx_st> context_;
  std::array<int64_t, 3> loaded_{};  // change times of the files, nanoseconds
  int64_t looked_ns_ = 0;
};

}  // namespace di::server
