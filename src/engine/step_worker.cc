#include "engine/step_worker.h"

#include <pthread.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace di::engine {
namespace {

// What a step throws (memory) ends the sequences of that step.
template <class Body>
Result<void> guarded(const Body& body) {
  try {
    return body();
  } catch (const std::exception& e) {
    return fail(Errc::kInternal, "the engine ran into an internal error: {}", e.what());
  }
}

}  // namespace

StepWorker::StepWorker(Runner& runner, int32_t max_drafts, int64_t mask_patience_ns, const Clock& clock, Trace* trace)
    : clock_(clock), trace_(trace), device_(runner, max_drafts, mask_patience_ns, clock), thread_([this] {
        pthread_setname_np(pthread_self(), "di-device");
        run();
      }) {}

StepWorker::~StepWorker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StepWorker::launch_forward(StepInput input) {
  DI_CHECK(launching_ == nullptr, "step {} is launched while step {} has no sampling yet", input.step,
           launching_->input.step);
  auto job = std::make_unique<Job>();
  job->input = std::move(input);
  launching_ = job.get();
  ++in_flight_;
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
}

void StepWorker::launch_sample(SampleInput sample) {
  DI_CHECK(launching_ != nullptr && launching_->input.step == sample.step, "sampling of step {} without its forward",
           sample.step);
  {
    const std::lock_guard lock(mutex_);
    launching_->sample = sample;
    launching_->sample_launched = true;
  }
  launching_ = nullptr;
  changed_.notify_all();
}

StepOutput StepWorker::wait() {
#ifdef DI_DEBUG_CHECKS
  DI_CHECK(launching_ == nullptr, "the host waits for the device between forward and sample of step {}",
           launching_->input.step);
#endif
  DI_CHECK(in_flight_ > 0, "nothing to wait for");
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !done_.empty(); });
  StepOutput out = std::move(done_.front());
  done_.pop_front();
  --in_flight_;
  return out;
}

StepWorker::Job* StepWorker::next_job(bool block) {
  std::unique_lock lock(mutex_);
  if (block) changed_.wait(lock, [&] { return !jobs_.empty() || stopping_; });
  return jobs_.empty() ? nullptr : jobs_.front().get();
}

void StepWorker::run() {
  Job* job = next_job(true);
  while (job != nullptr) {
    if (job->prepare_ns == 0) prepare(*job);
    StepOutput out = run_job(*job, clock_.now_ns());
    {
      const std::lock_guard lock(mutex_);
      jobs_.pop_front();
    }
    // The device goes on with what is queued before the host hears of this step.
    job = next_job(false);
    if (job != nullptr) {
      prepare(*job);
      publish_at_begin_ = std::move(out);
      continue;
    }
    publish(std::move(out));
    const int64_t waiting = clock_.now_ns();
    job = next_job(true);
    waited_ns_ += clock_.now_ns() - waiting;
  }
}

void StepWorker::publish(StepOutput out) {
  {
    const std::lock_guard lock(mutex_);
    done_.push_back(std::move(out));
  }
  changed_.notify_all();
}

void StepWorker::prepare(Job& job) {
  const int64_t begin = clock_.now_ns();
  job.prepared = guarded([&]() -> Result<void> {
    device_.prepare(job.input);
    return {};
  });
  job.prepare_ns = std::max<int64_t>(1, clock_.now_ns() - begin);
}

StepOutput StepWorker::run_job(Job& job, int64_t begin_ns) {
  if (publish_at_begin_) publish(*std::exchange(publish_at_begin_, std::nullopt));
  StepOutput out;
  out.prepare_ns = job.prepare_ns;
  out.gap_ns = last_forward_end_ns_ == 0 ? 0 : begin_ns - last_forward_end_ns_;
  out.idle_ns = last_forward_end_ns_ == 0 ? 0 : waited_ns_;
  waited_ns_ = 0;
  out.status = job.prepared;
  if (out.status) out.status = guarded([&] { return device_.forward(job.input); });
  const int64_t computed = clock_.now_ns();
  last_forward_end_ns_ = computed;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return job.sample_launched; });
  }
  const int64_t sampling = clock_.now_ns();
  if (out.status) {
    out.status = guarded([&]() -> Result<void> {
      out.sequences = device_.sample(job.input, job.sample);
      return {};
    });
  }
  const int64_t sampled = clock_.now_ns();
  if (out.status) out.status = guarded([&] { return device_.propose(job.input, out.sequences); });
  if (!out.status) device_.abandon(job.input);
  out.draft_ns = clock_.now_ns() - sampled;
  out.moves = device_.take_moves();
  out.sent_bytes = device_.take_sent_bytes();
  out.decode_rows = device_.decode_rows();
  out.prompt_rows = device_.prompt_rows();
  out.forward_ns = computed - begin_ns;
  if (out.status) out.flops = device_.flops();
  out.sample_ns = sampled - sampling;
  if (trace_ != nullptr) {
    const uint64_t step = job.input.step;
    const int32_t rows = job.input.total_rows;
    trace_->add({"forward", TraceThread::kDevice, begin_ns, computed, step, rows, device_.device_fed()});
    trace_->add({"sample", TraceThread::kDevice, sampling, sampled, step, rows, 0});
    if (job.input.propose) trace_->add({"draft", TraceThread::kDevice, sampled, sampled + out.draft_ns, step, rows, 0});
  }
  return out;
}

}  // namespace di::engine
