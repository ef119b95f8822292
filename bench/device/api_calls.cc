// Counts the calls of the CUDA runtime that a program makes and prints them when it ends: which of them stand in a
// decode step is seen from two runs that differ in their number of steps (tools/device_check.sh, part calls). The
// driver loads it into a program that is started with CUDA_INJECTION64_PATH=<this library>.
#include <cupti.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

namespace {

struct Calls {
  std::mutex mutex;
  std::map<std::string, int64_t> count;
};

Calls& calls() {
  static auto* all = new Calls();  // outlives the exit handlers
  return *all;
}

void CUPTIAPI on_call(void*, CUpti_CallbackDomain domain, CUpti_CallbackId, const void* data) {
  if (domain != CUPTI_CB_DOMAIN_RUNTIME_API) return;
  const auto* call = static_cast<const CUpti_CallbackData*>(data);
  if (call->callbackSite != CUPTI_API_ENTER) return;
  const std::lock_guard lock(calls().mutex);
  ++calls().count[call->functionName];
}

void print() {
  const std::lock_guard lock(calls().mutex);
  for (const auto& [name, n] : calls().count) {
    std::fprintf(stderr, "api %s %lld\n", name.c_str(), static_cast<long long>(n));
  }
}

}  // namespace

extern "C" int InitializeInjection() {
  CUpti_SubscriberHandle subscriber = nullptr;
  if (cuptiSubscribe(&subscriber, on_call, nullptr) != CUPTI_SUCCESS ||
      cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_RUNTIME_API) != CUPTI_SUCCESS) {
    std::fputs("api calls are not counted: CUPTI refuses\n", stderr);
    return 0;
  }
  std::atexit(print);
  return 1;
}
