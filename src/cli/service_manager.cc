#include "cli/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace di::cli {

ServiceManager::ServiceManager() {
  const char* address = std::getenv("NOTIFY_SOCKET");
  if (address == nullptr || (address[0] != '/' && address[0] != '@')) return;
  address_ = address;
  if (address_.size() >= sizeof(sockaddr_un::sun_path)) return;
  fd_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const char* text = std::getenv("WATCHDOG_USEC");
  int64_t microseconds = 0;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), microseconds);
  every_ns_ = std::max<int64_t>(microseconds, 0) * 1000 / 4;
}

ServiceManager::~ServiceManager() {
  if (fd_ >= 0) close(fd_);
}

void ServiceManager::tell(std::string_view state) const {
  if (fd_ < 0) return;
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path, address_.data(), address_.size());
  if (address_[0] == '@') to.sun_path[0] = '\0';  // an abstract name
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address_.size());
  // A manager that does not listen is no reason to stop.
  [[maybe_unused]] const ssize_t n =
      sendto(fd_, state.data(), state.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&to), length);
}

void ServiceManager::alive(const Clock& clock) {
  const int64_t now = clock.now_ns();
  if (every_ns_ == 0 || (told_ns_ != 0 && now - told_ns_ < every_ns_)) return;
  told_ns_ = now;
  tell("WATCHDOG=1");
}

int ServiceManager::pause_ms(int otherwise) const {
  if (every_ns_ == 0) return otherwise;
  return static_cast<int>(std::clamp<int64_t>(every_ns_ / kNsPerMs, 1, otherwise));
}

}  // namespace di::cli
