#include "server/media_fetch.h"

#include <boost/asio/ip/address.hpp>
#include <charconv>
#include <chrono>

#include "server/http_client.h"

namespace di::server {

namespace {

bool is_public(const std::string& text) {
  boost::system::error_code ignored;
  const boost::asio::ip::address address = boost::asio::ip::make_address(text, ignored);
  if (ignored) return false;
  return address.is_v4() ? codec::is_public_address(codec::Ipv4(address.to_v4().to_bytes()))
                         : codec::is_public_address(codec::Ipv6(address.to_v6().to_bytes()));
}

// Every address of the host must pass, not only the one that is used: a name with one foreign and one inner address is
// a trap.
Result<void> judge(const MediaFetchOptions& options, const std::string& host, const std::vector<std::string>& found) {
  for (const std::string& address : found) {
    if (options.reachable ? !options.reachable(address) : !is_public(address))
      return fail(Errc::kInvalidRequest, "{} has the address {}, which is not public", host, address);
  }
  return {};
}

}  // namespace

Result<std::string> fetch_media(const MediaFetchOptions& options, const std::string& link, size_t max_bytes) {
  Result<codec::FetchUrl> url = codec::parse_fetch_url(link);
  const HttpClient client;
  HttpAsk ask;
  ask.headers = {{"Accept", "image/*"}};
  ask.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(options.policy.total_ms);
  ask.connect_limit = std::chrono::milliseconds(options.policy.connect_ms);
  ask.most_bytes = max_bytes;
  ask.judge = [&](const std::vector<std::string>& found) { return judge(options, ask.url.host, found); };
  ask.proxy_host = options.proxy_host;
  ask.proxy_port = options.proxy_port;
  for (int redirects = 0; url; ++redirects) {
    DI_TRY(codec::check_host(options.policy, *url));
    ask.url = *url;
    const Result<HttpAnswer> answer = client.ask(ask);
    if (!answer && answer.error().code == Errc::kDeadlineExceeded)
      return fail(Errc::kDeadlineExceeded, "link: {} ms are over", options.policy.total_ms);
    if (!answer) return fail(answer.error().code, "link: {}", answer.error().message);
    if (answer->status == 200) return answer->body;
    const bool moved = answer->status == 301 || answer->status == 302 || answer->status == 303 ||
                       answer->status == 307 || answer->status == 308;
    if (!moved) return fail(Errc::kUnavailable, "link: {} answers with status {}", url->host, answer->status);
    if (redirects == options.policy.max_redirects)
      return fail(Errc::kUnavailable, "link: more than {} redirects", options.policy.max_redirects);
    url = codec::redirect_target(*url, answer->location);
  }
  return std::unexpected(url.error());
}

Result<void> set_proxy(MediaFetchOptions& options, std::string_view text) {
  std::string_view rest = text;
  if (rest.starts_with("http://")) rest.remove_prefix(7);
  if (rest.ends_with('/')) rest.remove_suffix(1);
  const size_t colon = rest.rfind(':');
  int port = 0;
  if (colon != std::string_view::npos) {
    const std::string_view digits = rest.substr(colon + 1);
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), port);
    if (read.ec != std::errc() || read.ptr != digits.data() + digits.size()) port = 0;
  }
  std::string_view host = rest.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (port < 1 || port > 65535 || host.empty() || host.find_first_of("/@ ") != std::string_view::npos)
    return fail(Errc::kInvalidRequest, "`{}` is no proxy, expected http://HOST:PORT", text);
  options.proxy_host = std::string(host);
  options.proxy_port = static_cast<uint16_t>(port);
  return {};
}

codec::ImageFetcher make_image_fetcher(MediaFetchOptions options) {
  return [kept = std::move(options)](const std::string& url, size_t max_bytes) {
    return fetch_media(kept, url, max_bytes);
  };
}

}  // namespace di::server
