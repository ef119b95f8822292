// What the scheduler owes to whom, on recorded plans: each scenario is run without a model, written to a file as
// --record-schedule does, and the file is read back, planned again and judged.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "base/clock.h"
#include "engine/schedule_record.h"
#include "support/folders.h"
#include "support/schedule_sim.h"

namespace di::engine {
namespace {

using test::ScheduleSim;
using test::SimRequest;

constexpr int64_t kMs = kNsPerMs;

class TempFile {
 public:
  TempFile() {
    std::string pattern = (std::filesystem::temp_directory_path() / "di-schedule-XXXXXX").string();
    close(::mkstemp(pattern.data()));
    path_ = pattern;
  }
  ~TempFile() { std::remove(path_.c_str()); }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Runs the scenario, recording it, and gives the record back after checking that every plan comes out again.
RecordedSchedule record(ScheduleSim& sim, int64_t until_ns) {
  const TempFile file;
  {
    auto recorder = ScheduleRecorder::create(file.path()).value();
    uint64_t step = 0;
    sim.plan = [&](const SchedulerConfig& config, const SchedulerInput& input) {
      return recorder->plan(++step, config, input, {});
    };
    sim.run(until_ns);
  }
  RecordedSchedule out = read_schedule(file.path()).value();
  for (const RecordedStep& step : out.steps) {
    EXPECT_TRUE(same_plan(plan_step(out.config, step.input, step.lookups()), step.plan)) << "step " << step.step;
  }
  return out;
}

// Prompt rows that others had between the arrival of a request and its first rows, from the record alone.
int64_t rows_before(const RecordedSchedule& schedule, uint64_t id) {
  int64_t rows = 0;
  for (const RecordedStep& step : schedule.steps) {
    const auto waits = [&](const SeqState& s) { return s.id == id; };
    if (std::none_of(step.input.waiting.begin(), step.input.waiting.end(), waits)) continue;
    for (const ScheduledRows& r : step.plan.rows) {
      if (r.id == id) return rows;
      if (!r.decode) rows += r.count;
    }
  }
  return rows;
}

SchedulerConfig config(int32_t seqs, int32_t tokens) {
  SchedulerConfig c;
  c.max_num_seqs = seqs;
  c.max_num_batched_tokens = tokens;
  c.block_tokens = 16;
  return c;
}

// A hundred requests of tenant 1 at the beginning, one of tenant 2 a little later.
ScheduleSim flood(const SchedulerConfig& c, int32_t n_blocks, int32_t prompt, int32_t output, int32_t single_prompt) {
  ScheduleSim sim(c, n_blocks, c.max_num_seqs, 2 * kMs, kMs / 50);
  for (int i = 0; i < 100; ++i) sim.requests.push_back({.tenant = 1, .prompt = prompt, .output = output});
  sim.requests.push_back({.arrival_ns = 50 * kMs, .tenant = 2, .prompt = single_prompt, .output = 10});
  return sim;
}

TEST(Policy, AFloodOfOneTenantDelaysAnotherByAtMostOneStepsBudget) {
  struct Case {
    const char* what;
    SchedulerConfig config;
    int32_t n_blocks, prompt, output, single_prompt;
  };
  const Case cases[] = {
      {"slots and memory for all", config(256, 256), 100000, 100, 40, 60},
      {"all slots taken by decodes", config(8, 256), 100000, 100, 400, 60},
      {"all memory taken", config(64, 256), 8 * 32, 300, 200, 60},
      {"a prompt much longer than a step", config(16, 256), 100000, 5000, 20, 60},
      {"both long", config(16, 256), 100000, 3000, 20, 3000},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    ScheduleSim sim = flood(c.config, c.n_blocks, c.prompt, c.output, c.single_prompt);
    const RecordedSchedule schedule = record(sim, 100'000 * kMs);
    const SimRequest& single = sim.requests.back();
    ASSERT_GE(single.finished_ns, 0);
    EXPECT_LE(rows_before(schedule, 101), c.config.max_num_batched_tokens);
    // At most the step under way and one more; each at most 256 rows.
    EXPECT_LE(single.first_rows_ns - single.arrival_ns, 2 * (2 * kMs + 256 * kMs / 50));
    EXPECT_EQ(single.preemptions, 0);
    for (const SimRequest& r : sim.requests) EXPECT_GE(r.finished_ns, 0);
  }
}

TEST(Policy, TenantsWithEqualDemandGetEqualPrompts) {
  ScheduleSim sim(config(32, 128), 4000, 32, kMs, kMs / 100);
  for (int i = 0; i < 300; ++i) {
    sim.requests.push_back({.tenant = 1 + i % 3, .prompt = i % 3 == 0 ? 400 : 40, .output = 8});
  }
  const RecordedSchedule schedule = record(sim, 3000 * kMs);
  std::map<int32_t, int64_t> tokens;  // while all three wait
  std::map<uint64_t, int32_t> tenant_of;
  for (const RecordedStep& step : schedule.steps) {
    std::map<int32_t, int> waiting;
    for (const SeqState& s : step.input.waiting) {
      ++waiting[s.tenant];
      tenant_of[s.id] = s.tenant;
    }
    if (waiting.size() < 3) break;
    for (const ScheduledRows& r : step.plan.rows) tokens[tenant_of[r.id]] += r.decode ? 0 : r.count;
  }
  ASSERT_GT(tokens[1], 1000);
  EXPECT_NEAR(static_cast<double>(tokens[2]) / static_cast<double>(tokens[3]), 1.0, 0.1);
  // Ten times longer prompts do not bring more tokens than half again.
  EXPECT_LT(static_cast<double>(tokens[1]) / static_cast<double>(tokens[2]), 1.5);
}

// Interactive requests come faster than they can be computed, for as long as the batch request is there.
void overload(ScheduleSim& sim, int32_t tenants, int32_t priority, int64_t for_ns) {
  for (int64_t t = 0; t < for_ns; t += 4 * kMs) {
    const auto tenant = static_cast<int32_t>(t / (4 * kMs)) % tenants;
    sim.requests.push_back({.arrival_ns = t, .tenant = tenant, .priority = priority, .prompt = 200, .output = 20});
  }
}

TEST(Policy, ABatchRequestFinishesWithinItsAgeingBound) {
  for (const int32_t tenants : {1, 5}) {
    SchedulerConfig c = config(16, 128);
    c.max_queue_ns = 200 * kMs;
    ScheduleSim sim(c, 600, 16, 2 * kMs, kMs / 20);
    sim.requests.push_back({.arrival_ns = 100 * kMs, .tenant = 0, .traffic_class = 2, .prompt = 300, .output = 30});
    overload(sim, tenants, -3, 1200 * kMs);
    record(sim, 1200 * kMs);
    const SimRequest& batch = sim.requests[0];
    int64_t waiting_interactive = 0;
    for (const SimRequest& r : sim.requests) waiting_interactive += r.first_rows_ns < 0 ? 1 : 0;
    EXPECT_GT(waiting_interactive, 100) << "the load was meant to be too much";
    ASSERT_GE(batch.finished_ns, 0) << tenants << " tenants";
    // Two classes in 400 ms, priorities void at 600 ms; then its turn, an equal share for its prompt, and its answer.
    const int64_t step_ns = 2 * kMs + 128 * kMs / 20;
    const int64_t own_steps = 300 * (tenants + 1) / 128 + 30 + 10;
    EXPECT_LE(batch.finished_ns - batch.arrival_ns, 600 * kMs + own_steps * step_ns) << tenants << " tenants";
    EXPECT_GE(batch.first_rows_ns - batch.arrival_ns, 160 * kMs) << "it was let in before its time";
  }
}

TEST(Policy, ABetterClassGoesFirstAndAWorseOneGivesUpItsMemory) {
  ScheduleSim sim(config(8, 64), 24, 8, kMs, 0);
  // Two batch requests fill the memory as they grow; the interactive one grows too and must not be the victim.
  sim.requests.push_back({.tenant = 1, .traffic_class = 2, .prompt = 100, .output = 150});
  sim.requests.push_back({.tenant = 1, .traffic_class = 2, .prompt = 60, .output = 150});
  sim.requests.push_back({.arrival_ns = kMs, .tenant = 1, .traffic_class = 0, .prompt = 60, .output = 150});
  record(sim, 1500 * kMs);
  EXPECT_EQ(sim.requests[2].preemptions, 0);
  EXPECT_GT(sim.requests[0].preemptions + sim.requests[1].preemptions, 0);
  for (const SimRequest& r : sim.requests) EXPECT_GE(r.finished_ns, 0);
}

TEST(Policy, PriorityOrdersInsideAClassOnly) {
  ScheduleSim sim(config(1, 64), 100, 1, kMs, 0);
  sim.requests.push_back({.tenant = 1, .prompt = 10, .output = 20});
  for (const int32_t priority : {0, 5, -5}) {
    sim.requests.push_back({.arrival_ns = kMs, .tenant = 1, .priority = priority, .prompt = 10, .output = 2});
  }
  sim.requests.push_back(
      {.arrival_ns = kMs, .tenant = 1, .traffic_class = 1, .priority = -100, .prompt = 10, .output = 2});
  record(sim, 1000 * kMs);
  const auto first = [&](size_t i) { return sim.requests[i].first_rows_ns; };
  EXPECT_LT(first(3), first(1));
  EXPECT_LT(first(1), first(2));
  EXPECT_LT(first(2), first(4)) << "another class";
}

TEST(Policy, ARequestThatLacksMemoryIsOvertakenOnlyForAWhile) {
  SchedulerConfig c = config(8, 256);
  c.max_queue_ns = 200 * kMs;
  ScheduleSim sim(c, 40, 8, kMs, 0);
  // 1 takes most of the memory; 2 needs all of it; tenant 3's small ones could slip in for ever.
  sim.requests.push_back({.tenant = 1, .prompt = 200, .output = 60});
  sim.requests.push_back({.arrival_ns = kMs, .tenant = 2, .prompt = 600, .output = 2});
  for (int64_t t = 2; t < 3000; t += 10) {
    sim.requests.push_back({.arrival_ns = t * kMs, .tenant = 3, .prompt = 100, .output = 30});
  }
  record(sim, 3500 * kMs);
  ASSERT_GE(sim.requests[1].first_rows_ns, 0);
  EXPECT_LE(sim.requests[1].first_rows_ns, 400 * kMs);
}

TEST(Policy, SeparateStepsAlternateByTheirIntervals) {
  SchedulerConfig c = config(8, 64);
  c.mixed_steps = false;
  ScheduleSim sim(c, 1000, 8, kMs, 0);
  sim.requests.push_back({.tenant = 1, .prompt = 50, .output = 400});
  sim.requests.push_back({.arrival_ns = 20 * kMs, .tenant = 1, .prompt = 50, .output = 10});
  sim.requests.push_back({.arrival_ns = 120 * kMs, .tenant = 1, .prompt = 150, .output = 10});
  const RecordedSchedule schedule = record(sim, 1000 * kMs);
  for (const RecordedStep& step : schedule.steps) {
    const auto decodes =
        std::count_if(step.plan.rows.begin(), step.plan.rows.end(), [](const ScheduledRows& r) { return r.decode; });
    EXPECT_TRUE(decodes == 0 || decodes == static_cast<std::ptrdiff_t>(step.plan.rows.size()))
        << "step " << step.step << " mixes";
  }
  // Decode steps until the next attempt: the second request waits for the 70th.
  EXPECT_EQ(sim.requests[1].first_rows_ns, 71 * kMs);
  for (const SimRequest& r : sim.requests) EXPECT_GE(r.finished_ns, 0);
}

// A run of the server (docs/engine.md says how to record one): tenant 0 queues a hundred requests of class chat and one
// of class batch, tenant 1 asks for one answer while 80 of them wait; 16 sequences, steps of 150 ms.
TEST(ScheduleRecord, ARecordedRunIsPlannedAgainAndKeepsItsPromises) {
  const RecordedSchedule schedule =
      read_schedule(std::string(di::test::kData) + "/schedule/flood_and_batch.jsonl").value();
  std::map<uint64_t, SeqState> seen;
  std::map<uint64_t, int64_t> last_rows_ns;
  std::map<uint64_t, size_t> waiting_at_arrival;
  for (const RecordedStep& step : schedule.steps) {
    EXPECT_TRUE(same_plan(plan_step(schedule.config, step.input, step.lookups()), step.plan)) << "step " << step.step;
    for (const std::vector<SeqState>* states : {&step.input.running, &step.input.waiting}) {
      for (const SeqState& s : *states) {
        seen.emplace(s.id, s);
        waiting_at_arrival.emplace(s.id, step.input.waiting.size() - 1);
      }
    }
    for (const ScheduledRows& r : step.plan.rows) last_rows_ns[r.id] = step.input.now_ns;
  }
  std::vector<uint64_t> single;
  std::vector<uint64_t> batch;
  for (const auto& [id, s] : seen) {
    if (s.tenant == 1) single.push_back(id);
    if (s.traffic_class == 2) batch.push_back(id);
    EXPECT_TRUE(last_rows_ns.contains(id)) << "sequence " << id << " never ran";
  }
  EXPECT_EQ(seen.size(), 102U);
  ASSERT_EQ(single.size(), 1U);
  ASSERT_EQ(batch.size(), 1U);

  EXPECT_GE(waiting_at_arrival[single[0]], 75U) << "the queue was meant to be long";
  EXPECT_LE(rows_before(schedule, single[0]), schedule.config.max_num_batched_tokens);
  // A class for each max_queue_ns, at the last one before all others; then its prompt and its two tokens.
  const int64_t waited = last_rows_ns[batch[0]] - seen[batch[0]].arrival_ns;
  const int64_t step_ns = 160 * kMs;
  EXPECT_GE(waited, 2 * schedule.config.max_queue_ns) << "it was let in before its time";
  EXPECT_LE(waited, 3 * schedule.config.max_queue_ns + 10 * step_ns);
}

TEST(ScheduleRecord, NamesWhatIsWrongWithAFile) {
  EXPECT_NE(read_schedule("/nonexistent/x").error().message.find("/nonexistent/x"), std::string::npos);
  const TempFile file;
  std::ofstream(file.path()) << "{\"config\":{}}\n";
  EXPECT_NE(read_schedule(file.path()).error().message.find("line 1: max_num_seqs should be an integer"),
            std::string::npos);
}

}  // namespace
}  // namespace di::engine
