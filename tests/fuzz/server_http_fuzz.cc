// Bytes of a connection against the server: HTTP parsing, routing, reading of bodies, answers. One server for all
// inputs, with an engine that answers at once; whatever arrives, it must go on answering.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "base/log.h"
#include "server/app.h"

namespace {

using namespace di;

struct Fixture {
  SystemClock clock;
  server::App app{config(), clock};
  server::HttpServer http{limits(), [this](const server::ExchangeRef& e) { app.handle(e); }, clock};

  static server::ServerConfig config() {
    configure_log({log_levels(LogLevel::kOff), false});
    server::ServerConfig out;
    out.served_model_names = {"m"};
    out.worker_threads = 1;
    return out;
  }
  static server::HttpLimits limits() {
    server::HttpLimits out;
    out.header_timeout_ms = out.body_timeout_ms = out.idle_timeout_ms = 200;
    return out;
  }
  Fixture() {
    if (!http.start("127.0.0.1", 0)) std::abort();
  }
};

int connect_to(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  // The side that closes first keeps its port for a minute: with one address and over a thousand connections a second
  // the ports run out. So they go round the addresses 127.0.0.1 to 127.0.0.250.
  static uint32_t connections = 0;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + connections++ % 250);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) std::abort();  // NOLINT: the socket API
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) std::abort();  // NOLINT: the socket API
  return fd;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Fixture* fixture = new Fixture;
  const int fd = connect_to(fixture->http.port());
  if (size > 0 && send(fd, data, size, MSG_NOSIGNAL) < 0) std::perror("send");
  shutdown(fd, SHUT_WR);
  char block[4096];
  while (recv(fd, block, sizeof block, 0) > 0) {
  }
  close(fd);
  return 0;
}
