// Small helpers of all kernels of one instruction set.

// 2^(b-127) of a ue8m0 byte; b = 0 reads as zero, b = 255 as infinity (neither occurs in a weight).
inline float ue8m0(uint8_t b) {
  return std::bit_cast<float>(static_cast<uint32_t>(b) << 23);
}

// 2^(b-127+8) for E4M3 bytes read as fp16.
inline float fp8_multiplier(uint8_t b) {
  return std::bit_cast<float>((b > 246 ? 254U : b + 8U) << 23);
}

inline uint32_t four_scales(const uint8_t* s) {
  uint32_t v;
  std::memcpy(&v, s, sizeof v);
  return v;
}

// Runs body(scratch, task) for all tasks, in the caller or on the whole team; workers take tasks one by one. The
// scratch of a worker is empty at the start of each task.
template <class Body>
inline void run_tasks(CpuStream& s, int64_t tasks, bool parallel, const Body& body) {
  if (!parallel || tasks <= 1 || s.pool.size() == 1) {
    for (int64_t task = 0; task < tasks; ++task) {
      s.worker[0].reset();
      body(s.worker[0], task);
    }
    return;
  }
  std::atomic<int64_t> next{0};
  s.pool.parallel([&](int worker) {
    Arena& scratch = s.worker[static_cast<size_t>(worker)];
    for (;;) {
      const int64_t task = next.fetch_add(1, std::memory_order_relaxed);
      if (task >= tasks) return;
      scratch.reset();
      body(scratch, task);
    }
  });
}
