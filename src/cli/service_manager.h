// What systemd wants to hear of a service of Type=notify: ready, stopping, and signs of life for its watchdog
// (protocol: sd_notify(3), a datagram to the socket that NOTIFY_SOCKET names). Without that variable everything here
// does nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace di::cli {

class ServiceManager {
 public:
  // Reads NOTIFY_SOCKET and WATCHDOG_USEC.
  ServiceManager();
  ~ServiceManager();
  ServiceManager(const ServiceManager&) = delete;
  ServiceManager& operator=(const ServiceManager&) = delete;

  // Lines such as READY=1 and STATUS=text.
  void tell(std::string_view state) const;
  // A sign of life, when one is due: four in the time that the watchdog allows.
  void alive(const Clock& clock);
  // How long to sleep at most between two calls of alive(); `otherwise` without a watchdog.
  int pause_ms(int otherwise) const;

 private:
  int fd_ = -1;
  std::string address_;
  int64_t every_ns_ = 0;  // 0: no watchdog
  int64_t told_ns_ = 0;
};

}  // namespace di::cli
