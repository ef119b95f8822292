// Faults of a device, for tests: a library that CUDA loads into a program (CUDA_INJECTION64_PATH) and that does what
// the file named by DI_FAULTS asks for, whenever its one line changes:
//   fill    takes all memory of the device that is free
//   free    gives it back
//   trap    runs a kernel that fails, as one that wrote beyond its memory would: the process's use of the device is
//   over
#include <cuda.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr const char* kTrap =
    ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry fault()\n{\n  trap;\n  ret;\n}\n";

void fill(std::vector<CUdeviceptr>& taken) {
  size_t bytes = 0;
  for (size_t piece = size_t{1} << 34; piece >= (size_t{1} << 20);) {
    CUdeviceptr at = 0;
    if (cuMemAlloc(&at, piece) == CUDA_SUCCESS) {
      taken.push_back(at);
      bytes += piece;
    } else {
      piece /= 2;
    }
  }
  std::fprintf(stderr, "faults: %zu bytes of the device are taken\n", bytes);
}

void trap() {
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  if (cuModuleLoadData(&module, kTrap) != CUDA_SUCCESS ||
      cuModuleGetFunction(&kernel, module, "fault") != CUDA_SUCCESS ||
      cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) != CUDA_SUCCESS) {
    std::fputs("faults: the failing kernel cannot be run\n", stderr);
  }
}

void serve(const std::string& file) {
  std::vector<CUdeviceptr> taken;
  CUcontext context = nullptr;
  for (std::string done;; std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
    std::string wanted;
    std::getline(std::ifstream(file) >> std::ws, wanted);
    if (wanted == done) continue;
    CUdevice device = 0;
    if (context == nullptr &&
        (cuDeviceGet(&device, 0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)) {
      continue;
    }
    cuCtxSetCurrent(context);
    if (wanted == "fill") fill(taken);
    if (wanted == "trap") trap();
    if (wanted == "free") {
      for (const CUdeviceptr at : taken) cuMemFree(at);
      taken.clear();
    }
    done = wanted;
  }
}

}  // namespace

extern "C" int InitializeInjection() {
  const char* file = std::getenv("DI_FAULTS");
  if (file != nullptr) std::thread(serve, std::string(file)).detach();
  return 1;
}
