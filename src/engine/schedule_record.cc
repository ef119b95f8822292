#include "engine/schedule_record.h"

#include <algorithm>
#include <optional>

#include "base/json.h"

namespace di::engine {
namespace {

void write_config(JsonWriter& w, const SchedulerConfig& c) {
  w.begin_object().key("version").value(1).key("sequence_fields").value(kSeqFields);
  w.key("config").begin_object();
  w.key("max_num_seqs").value(c.max_num_seqs);
  w.key("max_num_batched_tokens").value(c.max_num_batched_tokens);
  w.key("block_tokens").value(c.block_tokens);
  w.key("max_drafts").value(c.max_drafts);
  w.key("max_positions").value(c.max_positions);
  w.key("max_queue_ns").value(c.max_queue_ns);
  w.key("mixed_steps").value(c.mixed_steps);
  w.key("prefill_attempt_interval").value(c.prefill_attempt_interval);
  w.key("prefill_any_attempt_interval").value(c.prefill_any_attempt_interval);
  w.end_object().end_object();
}

void write_sequences(JsonWriter& w, const std::vector<SeqState>& sequences) {
  w.begin_array();
  for (const SeqState& s : sequences) {
    w.begin_array().value(s.id).value(s.length).value(s.computed).value(s.output_tokens).value(s.blocks);
    w.value(s.priority).value(s.decode_rows).value(s.traffic_class).value(s.tenant).value(s.arrival_ns);
    w.value(s.ending ? 1 : 0).value(s.checkpoint).end_array();
  }
  w.end_array();
}

void write_policy(JsonWriter& w, const PolicyState& policy) {
  w.begin_object().key("decode_steps").value(policy.decode_steps).key("rounds").begin_array();
  for (const auto& round : policy.rounds) {
    w.begin_array();
    for (const TenantCredit& t : round) w.begin_array().value(t.tenant).value(t.credit).end_array();
    w.end_array();
  }
  w.end_array().end_object();
}

void write_ids(JsonWriter& w, const std::vector<uint64_t>& ids) {
  w.begin_array();
  for (const uint64_t id : ids) w.value(id);
  w.end_array();
}

void write_plan(JsonWriter& w, const StepPlan& plan) {
  w.begin_object().key("rows").begin_array();
  for (const ScheduledRows& r : plan.rows) {
    w.begin_array().value(r.id).value(r.begin).value(r.count).value(r.new_blocks);
    w.value(r.admit ? 1 : 0).value(r.decode ? 1 : 0).value(r.sample ? 1 : 0).end_array();
  }
  w.end_array().key("preempted");
  write_ids(w, plan.preempted);
  w.key("exhausted");
  write_ids(w, plan.exhausted);
  w.key("policy");
  write_policy(w, plan.policy);
  w.end_object();
}

std::string step_line(const RecordedStep& s) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("step").value(s.step).key("now_ns").value(s.input.now_ns);
  w.key("free_blocks").value(s.input.pool.free_blocks).key("free_slots").value(s.input.pool.free_slots);
  w.key("policy");
  write_policy(w, s.input.policy);
  w.key("running");
  write_sequences(w, s.input.running);
  w.key("waiting");
  write_sequences(w, s.input.waiting);
  w.key("starts").begin_array();
  for (const auto& [id, start] : s.starts) {
    w.begin_array().value(id).value(start.computed).value(start.blocks).value(start.idle_blocks);
    w.value(start.checkpoint).value(start.ready ? 1 : 0).end_array();
  }
  w.end_array().key("freed_blocks").begin_array();
  for (const auto& [id, n] : s.freed_blocks) w.begin_array().value(id).value(n).end_array();
  w.end_array().key("plan");
  write_plan(w, s.plan);
  w.end_object();
  return out;
}

// Reads the integers of a line; the first thing missing is kept as the error.
class LineReader {
 public:
  explicit LineReader(const Json& json) : json_(json) {}

  int64_t number(const Json& object, const char* key) {
    const Json* value = object.find(key);
    const std::optional<int64_t> n = value == nullptr ? std::nullopt : value->to_i64();
    if (!n) missing(key, "an integer");
    return n.value_or(0);
  }
  int32_t small(const Json& object, const char* key) { return static_cast<int32_t>(number(object, key)); }
  // Arrays of `width` integers.
  std::vector<std::vector<int64_t>> table(const Json& object, const char* key, size_t width) {
    std::vector<std::vector<int64_t>> out;
    const Json* value = object.find(key);
    if (value == nullptr || !value->is_array()) {
      missing(key, "an array");
      return out;
    }
    for (const Json& row : value->as_array()) {
      std::vector<int64_t> numbers;
      if (row.is_array()) {
        for (const Json& n : row.as_array()) numbers.push_back(n.to_i64().value_or(0));
      } else {
        numbers.push_back(row.to_i64().value_or(0));
      }
      if (numbers.size() != width) {
        missing(key, "rows of another width");
        return {};
      }
      out.push_back(std::move(numbers));
    }
    return out;
  }
  const Json& object(const Json& parent, const char* key) {
    const Json* value = parent.find(key);
    if (value != nullptr && value->is_object()) return *value;
    missing(key, "an object");
    return json_;
  }
  void missing(const char* key, const char* expected) {
    if (error_.empty()) error_ = fmt::format("{} should be {}", key, expected);
  }
  const std::string& error() const { return error_; }

 private:
  const Json& json_;
  std::string error_;
};

SeqState read_sequence(const std::vector<int64_t>& v) {
  const auto i32 = [&](size_t i) { return static_cast<int32_t>(v[i]); };
  SeqState s;
  s.id = static_cast<uint64_t>(v[0]);
  s.length = i32(1);
  s.computed = i32(2);
  s.output_tokens = i32(3);
  s.blocks = i32(4);
  s.priority = i32(5);
  s.decode_rows = i32(6);
  s.traffic_class = i32(7);
  s.tenant = i32(8);
  s.arrival_ns = v[9];
  s.ending = v[10] != 0;
  s.checkpoint = i32(11);
  return s;
}

PolicyState read_policy(LineReader& r, const Json& json) {
  PolicyState policy;
  policy.decode_steps = r.small(json, "decode_steps");
  const Json* rounds = json.find("rounds");
  if (rounds == nullptr || !rounds->is_array() || rounds->as_array().size() != policy.rounds.size()) {
    r.missing("rounds", "an array of one round per class");
    return policy;
  }
  for (size_t c = 0; c < policy.rounds.size(); ++c) {
    Json one{Json::Object{}};
    one.set("round", rounds->as_array()[c]);
    for (const auto& v : r.table(one, "round", 2)) policy.rounds[c].push_back({static_cast<int32_t>(v[0]), v[1]});
  }
  return policy;
}

StepPlan read_plan(LineReader& r, const Json& json) {
  StepPlan plan;
  for (const auto& v : r.table(json, "rows", 7)) {
    const auto i32 = [&](size_t i) { return static_cast<int32_t>(v[i]); };
    plan.rows.push_back({static_cast<uint64_t>(v[0]), i32(1), i32(2), i32(3), v[4] != 0, v[5] != 0, v[6] != 0});
    plan.total_rows += i32(2);
  }
  for (const auto& v : r.table(json, "preempted", 1)) plan.preempted.push_back(static_cast<uint64_t>(v[0]));
  for (const auto& v : r.table(json, "exhausted", 1)) plan.exhausted.push_back(static_cast<uint64_t>(v[0]));
  plan.policy = read_policy(r, r.object(json, "policy"));
  return plan;
}

RecordedStep read_step(LineReader& r, const Json& json) {
  RecordedStep s;
  s.step = static_cast<uint64_t>(r.number(json, "step"));
  s.input.now_ns = r.number(json, "now_ns");
  s.input.pool = {r.small(json, "free_blocks"), r.small(json, "free_slots")};
  s.input.policy = read_policy(r, r.object(json, "policy"));
  for (const auto& v : r.table(json, "running", 12)) s.input.running.push_back(read_sequence(v));
  for (const auto& v : r.table(json, "waiting", 12)) s.input.waiting.push_back(read_sequence(v));
  for (const auto& v : r.table(json, "starts", 6)) {
    s.starts.emplace_back(static_cast<uint64_t>(v[0]),
                          Start{static_cast<int32_t>(v[1]), static_cast<int32_t>(v[2]), static_cast<int32_t>(v[3]),
                                static_cast<int32_t>(v[4]), v[5] != 0});
  }
  for (const auto& v : r.table(json, "freed_blocks", 2)) {
    s.freed_blocks.emplace_back(static_cast<uint64_t>(v[0]), static_cast<int32_t>(v[1]));
  }
  s.plan = read_plan(r, r.object(json, "plan"));
  return s;
}

SchedulerConfig read_config(LineReader& r, const Json& json) {
  SchedulerConfig c;
  c.max_num_seqs = r.small(json, "max_num_seqs");
  c.max_num_batched_tokens = r.small(json, "max_num_batched_tokens");
  c.block_tokens = r.small(json, "block_tokens");
  c.max_drafts = r.small(json, "max_drafts");
  c.max_positions = r.number(json, "max_positions");
  c.max_queue_ns = r.number(json, "max_queue_ns");
  const Json* mixed = json.find("mixed_steps");
  if (mixed == nullptr || !mixed->is_bool()) {
    r.missing("mixed_steps", "true or false");
  } else {
    c.mixed_steps = mixed->as_bool();
  }
  c.prefill_attempt_interval = r.small(json, "prefill_attempt_interval");
  c.prefill_any_attempt_interval = r.small(json, "prefill_any_attempt_interval");
  return c;
}

bool same_policy(const PolicyState& a, const PolicyState& b) {
  const auto same = [](const TenantCredit& x, const TenantCredit& y) {
    return x.tenant == y.tenant && x.credit == y.credit;
  };
  for (size_t c = 0; c < a.rounds.size(); ++c) {
    if (!std::equal(a.rounds[c].begin(), a.rounds[c].end(), b.rounds[c].begin(), b.rounds[c].end(), same)) return false;
  }
  return a.decode_steps == b.decode_steps;
}

}  // namespace

Lookups RecordedStep::lookups() const {
  Lookups out;
  out.start = [this](uint64_t id) {
    const auto it = std::find_if(starts.begin(), starts.end(), [&](const auto& s) { return s.first == id; });
    return it == starts.end() ? Start{} : it->second;
  };
  out.freed_blocks = [this](uint64_t id) {
    const auto it =
        std::find_if(freed_blocks.begin(), freed_blocks.end(), [&](const auto& f) { return f.first == id; });
    if (it != freed_blocks.end()) return it->second;
    const auto seq =
        std::find_if(input.running.begin(), input.running.end(), [&](const SeqState& s) { return s.id == id; });
    return seq == input.running.end() ? 0 : seq->blocks;
  };
  return out;
}

Result<std::unique_ptr<ScheduleRecorder>> ScheduleRecorder::create(const std::string& file) {
  std::ofstream out(file, std::ios::binary);
  if (!out) return fail(Errc::kUnavailable, "{} cannot be written", file);
  return std::unique_ptr<ScheduleRecorder>(new ScheduleRecorder(std::move(out)));
}

StepPlan ScheduleRecorder::plan(uint64_t step, const SchedulerConfig& config, const SchedulerInput& input,
                                const Lookups& lookups) {
  if (!begun_) {
    std::string line;
    JsonWriter w(line);
    write_config(w, config);
    out_ << line << '\n';
    begun_ = true;
  }
  RecordedStep record;
  record.step = step;
  Lookups noted;
  if (lookups.start) {
    noted.start = [&](uint64_t id) { return record.starts.emplace_back(id, lookups.start(id)).second; };
  }
  if (lookups.freed_blocks) {
    noted.freed_blocks = [&](uint64_t id) {
      return record.freed_blocks.emplace_back(id, lookups.freed_blocks(id)).second;
    };
  }
  record.input = input;
  record.plan = plan_step(config, input, noted);
  out_ << step_line(record) << '\n';
  return record.plan;
}

Result<RecordedSchedule> read_schedule(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return fail(Errc::kNotFound, "{} cannot be read", file);
  RecordedSchedule out;
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    const Result<Json> json = parse_json(line);
    if (!json) return fail(Errc::kCorruption, "{} line {}: {}", file, number, json.error().message);
    LineReader r(*json);
    if (number == 1) {
      out.config = read_config(r, r.object(*json, "config"));
    } else {
      out.steps.push_back(read_step(r, *json));
    }
    if (!r.error().empty()) return fail(Errc::kCorruption, "{} line {}: {}", file, number, r.error());
  }
  if (out.steps.empty()) return fail(Errc::kCorruption, "{} has no steps", file);
  return out;
}

bool same_plan(const StepPlan& a, const StepPlan& b) {
  return a.rows == b.rows && a.preempted == b.preempted && a.exhausted == b.exhausted &&
         same_policy(a.policy, b.policy);
}

}  // namespace di::engine
