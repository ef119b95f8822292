#include "server/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/stat.h>

#include "base/log.h"

namespace di::server {
namespace {

std::string last_problem() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* text = ERR_reason_error_string(code);
  return text == nullptr ? "unknown error" : text;
}

std::unexpected<Error> bad_file(const char* option, const std::string& path) {
  return fail(Errc::kInvalidRequest, "{} {}: {}", option, path, last_problem());
}

// Of the protocols that a client offers, the only one there is.
int choose_http11(SSL*, const unsigned char** out, unsigned char* out_length, const unsigned char* in,
                  unsigned int in_length, void*) {
  static constexpr unsigned char kOffered[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_length, kOffered, sizeof kOffered, in, in_length) != OPENSSL_NPN_NEGOTIATED)
    return SSL_TLSEXT_ERR_NOACK;
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

}  // namespace

Result<std::unique_ptr<TlsListener>> TlsListener::create(const TlsFiles& files, const Clock& clock) {
  if (files.key.empty()) return fail(Errc::kInvalidRequest, "--tls-cert needs --tls-key");
  std::unique_ptr<TlsListener> out(new TlsListener(files, clock));
  DI_TRY(out->load());
  return out;
}

Result<void> TlsListener::load() {
  const std::array<int64_t, 3> times = change_times();
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (context == nullptr) return fail(Errc::kInternal, "TLS cannot start: {}", last_problem());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_mode(context.get(),
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_alpn_select_cb(context.get(), choose_http11, nullptr);
  if (SSL_CTX_use_certificate_chain_file(context.get(), files_.certificate.c_str()) != 1)
    return bad_file("--tls-cert", files_.certificate);
  if (SSL_CTX_use_PrivateKey_file(context.get(), files_.key.c_str(), SSL_FILETYPE_PEM) != 1)
    return bad_file("--tls-key", files_.key);
  if (SSL_CTX_check_private_key(context.get()) != 1) return bad_file("--tls-key", files_.key);
  if (!files_.client_authority.empty()) {
    if (SSL_CTX_load_verify_locations(context.get(), files_.client_authority.c_str(), nullptr) != 1)
      return bad_file("--tls-ca", files_.client_authority);
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }
  context_ = context;
  loaded_ = times;
  looked_ns_ = clock_.now_ns();
  return {};
}

std::array<int64_t, 3> TlsListener::change_times() const {
  const auto time_of = [](const std::string& path) {
    struct stat info{};
    if (path.empty() || stat(path.c_str(), &info) != 0) return int64_t{0};
    return int64_t{info.st_mtim.tv_sec} * kNsPerSecond + info.st_mtim.tv_nsec;
  };
  return {time_of(files_.certificate), time_of(files_.key), time_of(files_.client_authority)};
}

ssl_st* TlsListener::new_session() {
  const int64_t now = clock_.now_ns();
  if (now - looked_ns_ >= kNsPerSecond) {
    looked_ns_ = now;
    if (const std::array<int64_t, 3> times = change_times(); times != loaded_) {
      if (const Result<void> ok = load(); ok) {
        DI_LOG(kInfo, "the certificates were read again");
      } else {
        loaded_ = times;  // not again before the next change
        DI_LOG(kError, "the certificates stay as they were: {}", ok.error().message);
      }
    }
  }
  return SSL_new(context_.get());
}

}  // namespace di::server
