#include "structured/compile_pool.h"

#include <algorithm>
#include <exception>

#include "base/sha256.h"

namespace di::structured {
namespace {

int32_t thread_count(int32_t wanted) {
  if (wanted > 0) return wanted;
  return std::clamp(static_cast<int32_t>(std::thread::hardware_concurrency() / 4), 1, 8);
}

// Refusals hold texts only.
constexpr int64_t kRefusalBytes = 1024;

int64_t bytes_of(const Expected<CompiledRef>& verdict) {
  return verdict ? (*verdict)->memory_bytes() : kRefusalBytes;
}

Expected<CompiledRef> compile_safely(const VocabularyRef& vocabulary, const ConstraintSpec& spec,
                                     const Limits& limits) {
  try {
    return structured::compile(vocabulary, spec, limits);
  } catch (const std::exception& e) {  // of the standard library, for want of memory
    return refuse("constraint_too_complex", std::string("compiling failed: ") + e.what());
  }
}

// The masks of the start and of what follows the texts that are forced, while the prompt is being computed.
void warm(const CompiledRef& compiled) {
  constexpr int kStates = 32;
  constexpr size_t kForced = 256;
  Matcher matcher(compiled);
  std::vector<uint32_t> row(matcher.mask_words());
  for (int i = 0; i < kStates && matcher.fill_mask(row); ++i) {
    const std::string text = matcher.forced_text(kForced);
    if (text.empty() || !matcher.accept_bytes(text)) return;
  }
}

}  // namespace

std::string constraint_key(const ConstraintSpec& spec) {
  std::string text;
  const auto add = [&text](std::string_view part) {
    text += std::to_string(part.size());
    text += ':';
    text += part;
  };
  const auto number = [&text](auto value) {
    text += std::to_string(static_cast<int>(value));
    text += ',';
  };
  const SpecOptions& o = spec.options;
  number(spec.kind);
  number(spec.reasoning);
  number(o.whitespace);
  number(o.property_order);
  number(o.lenient);
  number(o.close_objects);
  number(o.numeric_formats);
  number(o.refuse_unknown_formats);
  number(o.tool_choice);
  number(o.parallel_tool_calls);
  add(o.whitespace_pattern);
  add(o.tool_name);
  add(spec.payload);
  add(spec.or_tools);
  const Sha256 digest = sha256(text);
  return {digest.begin(), digest.end()};
}

CompilePool::CompilePool(VocabularyRef vocabulary, const CompilePoolOptions& options, const Clock& clock)
    : vocabulary_(std::move(vocabulary)), options_(options), clock_(clock) {
  for (int32_t i = 0; i < thread_count(options.threads); ++i) threads_.emplace_back([this] { work(); });
}

CompilePool::~CompilePool() {
  (void)tasks_.take_all();
  tasks_.close();
  threads_.clear();
}

void CompilePool::compile(ConstraintSpec spec, Done done) {
  std::string key = constraint_key(spec);
  std::optional<Expected<CompiledRef>> known;
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_key_.find(key);
    if (found != by_key_.end() && found->second->verdict && !*found->second->verdict &&
        clock_.now_ns() >= found->second->forget_at_ns) {
      entries_.erase(found->second);
      by_key_.erase(found);
    } else if (found != by_key_.end()) {
      ++stats_.hits;
      entries_.splice(entries_.begin(), entries_, found->second);
      if (!found->second->verdict) {
        found->second->waiting.push_back(std::move(done));
        return;
      }
      known = found->second->verdict;
    }
    if (!known && stats_.waiting >= static_cast<int64_t>(options_.max_waiting)) {
      known = refuse("overloaded", "too many constraints wait to be compiled");
    }
    if (!known) {
      ++stats_.misses;
      ++stats_.waiting;
      entries_.push_front({key, std::nullopt, 0, {}});
      entries_.front().waiting.push_back(std::move(done));
      by_key_.emplace(key, entries_.begin());
      tasks_.push({std::move(key), std::move(spec)});
      return;
    }
  }
  done(*known);
}

void CompilePool::work() {
  while (std::optional<Task> task = tasks_.pop()) {
    {
      const std::lock_guard lock(mutex_);
      --stats_.waiting;
    }
    const int64_t started = clock_.now_ns();
    Expected<CompiledRef> verdict = compile_safely(vocabulary_, task->spec, options_.limits);
    const double seconds = static_cast<double>(clock_.now_ns() - started) * 1e-9;
    store(task->key, verdict, seconds);
    if (verdict) warm(*verdict);
  }
}

void CompilePool::store(const std::string& key, const Expected<CompiledRef>& verdict, double seconds) {
  std::vector<Done> waiting;
  std::function<void(double)> observer;  // others' code is called outside the lock
  {
    const std::lock_guard lock(mutex_);
    Entry& entry = *by_key_.at(key);
    if (!verdict) {
      ++stats_.refused;
      entry.forget_at_ns = clock_.now_ns() + options_.keep_refusal_ms * kNsPerMs;
    }
    observer = on_compiled_;
    entry.verdict = verdict;
    waiting.swap(entry.waiting);
    trim_locked();
  }
  if (observer) observer(seconds);
  for (const Done& done : waiting) done(verdict);
}

// Constraints grow while they are used, so their sizes are asked for each time.
void CompilePool::trim_locked() {
  int64_t bytes = 0;
  int64_t cached = 0;
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (!it->verdict) {
      ++it;
      continue;
    }
    const int64_t own = bytes_of(*it->verdict);
    if (cached > 0 && (bytes + own > options_.cache_bytes || cached >= static_cast<int64_t>(options_.max_cached))) {
      by_key_.erase(it->key);
      it = entries_.erase(it);
      continue;
    }
    bytes += own;
    ++cached;
    ++it;
  }
  stats_.cached = cached;
  stats_.cached_bytes = bytes;
}

void CompilePool::on_compiled(std::function<void(double)> observer) {
  const std::lock_guard lock(mutex_);
  on_compiled_ = std::move(observer);
}

CompilePoolStats CompilePool::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace di::structured
