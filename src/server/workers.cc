#include "server/workers.h"

#include <exception>

#include "base/log.h"

namespace di::server {

Workers::Workers(int32_t threads) {
  for (int32_t i = 0; i < threads; ++i) {
    threads_.emplace_back([this] {
      while (std::optional<std::function<void()>> task = tasks_.pop()) {
        try {
          (*task)();
        } catch (const std::exception& e) {
          DI_LOG(kError, "server task failed: {}", e.what());
        }
      }
    });
  }
}

Workers::~Workers() {
  stop();
}

void Workers::stop() {
  tasks_.close();
  threads_.clear();
}

void Workers::post(std::function<void()> task) {
  tasks_.push(std::move(task));
}

}  // namespace di::server
