// deepinfer generate: every line of a file answered once, in the form of OpenAI's Batch API (design.md §7). An answer
// is one write of one line, so a killed run leaves at most a torn last line, which the next run cuts off; lines that
// are there already are not done again.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <mutex>
#include <unordered_set>

#include "base/log.h"
#include "cli/constraint_options.h"
#include "cli/local_client.h"
#include "cli/local_model.h"

namespace di::cli {
namespace {

struct Line {
  std::string custom_id;
  std::string body;  // JSON; empty when `error` says why there is none
  std::string error;
};

// A line in Batch form, or a bare chat body whose id is its line number. Unknown model names are replaced by the served
// one: there is only one model here, and batches are written for many servers.
Line read_line(const std::string& text, size_t number, const std::string& model, const codec::CodecOptions& codec,
               const Json& constraint) {
  Line line;
  line.custom_id = std::to_string(number);
  Result<Json> parsed = parse_json(text);
  if (!parsed || !parsed->is_object()) {
    line.error = parsed ? "the line is no JSON object" : "the line is no JSON: " + parsed.error().message;
    return line;
  }
  Json body = std::move(*parsed);
  if (const Json* inner = body.find_value("body")) {
    if (const Json* id = body.find_value("custom_id"); id != nullptr && id->is_string())
      line.custom_id = id->as_string();
    if (const Json* url = body.find_value("url");
        url != nullptr && url->is_string() && url->as_string() != "/v1/chat/completions") {
      line.error = fmt::format("url is `{}`, expected /v1/chat/completions", url->as_string());
      return line;
    }
    body = Json(*inner);
  }
  if (body.is_object()) {
    const Json* name = body.find_value("model");
    if (name == nullptr || (name->is_string() && !codec.models.contains(name->as_string())))
      body.set("model", Json(model));
    body.set("stream", Json(false));
    body.set("stream_options", Json());
    if (body.find_value("response_format") == nullptr && body.find_value("structured_outputs") == nullptr) {
      for (const JsonMember& m : constraint.as_object()) body.set(m.key, m.value);
    }
  }
  line.body = to_json(body);
  return line;
}

std::string result_line(const Line& line, const LocalAnswer& answer) {
  std::string out;
  JsonWriter w(out);
  w.begin_object()
      .key("id")
      .value("batch_req_" + answer.request_id)
      .key("custom_id")
      .value(line.custom_id)
      .key("response");
  w.begin_object()
      .key("status_code")
      .value(answer.status)
      .key("request_id")
      .value(answer.request_id)
      .key("body")
      .raw(answer.body)
      .end_object();
  w.key("error").null().end_object();
  out += '\n';
  return out;
}

// The output file: what it holds already, and whole lines appended to it.
class OutputFile {
 public:
  ~OutputFile() {
    if (fd_ >= 0) close(fd_);
  }

  Result<void> open(const std::string& path) {
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0) return fail(Errc::kInvalidRequest, "cannot open {}: {}", path, std::strerror(errno));
    std::ifstream in(path, std::ios::binary);
    std::string text;
    off_t whole = 0;
    while (std::getline(in, text)) {
      if (in.eof()) break;  // no newline: torn
      const Result<Json> line = parse_json(text);
      const Json* id = line ? line->find_value("custom_id") : nullptr;
      if (id == nullptr || !id->is_string()) {
        return fail(Errc::kInvalidRequest, "{}: line {} is no result of a batch; name another output file", path,
                    done_.size() + 1);
      }
      done_.insert(id->as_string());
      whole += static_cast<off_t>(text.size()) + 1;
    }
    if (ftruncate(fd_, whole) != 0 || lseek(fd_, whole, SEEK_SET) < 0)
      return fail(Errc::kInternal, "cannot cut {}: {}", path, std::strerror(errno));
    return {};
  }

  bool has(const std::string& custom_id) const { return done_.contains(custom_id); }

  Result<void> append(const std::string& line) {
    const ssize_t n = write(fd_, line.data(), line.size());
    if (n != static_cast<ssize_t>(line.size()))
      return fail(Errc::kInternal, "cannot write the output: {}", n < 0 ? std::strerror(errno) : "the disk is full");
    return {};
  }

 private:
  int fd_ = -1;
  std::unordered_set<std::string> done_;
};

// Counts, and a bar on a terminal.
struct Progress {
  size_t total = 0;
  size_t finished = 0;
  size_t failed = 0;
  size_t skipped = 0;
  bool terminal = isatty(STDERR_FILENO) != 0;
  int64_t started_ns = 0;
  int64_t drawn_ns = 0;

  void draw(int64_t now_ns, bool last) {
    if (!terminal || (!last && now_ns - drawn_ns < 100 * kNsPerMs)) return;
    drawn_ns = now_ns;
    const size_t done = finished + skipped;
    const size_t width = 30;
    const size_t filled = total == 0 ? width : width * done / total;
    const double seconds = static_cast<double>(now_ns - started_ns) * 1e-9;
    std::fprintf(stderr, "\r[%s%s] %zu/%zu  %.1f lines/s%s", std::string(filled, '#').c_str(),
                 std::string(width - filled, '.').c_str(), done, total,
                 seconds > 0 ? static_cast<double>(finished) / seconds : 0.0, last ? "\n" : " ");
    std::fflush(stderr);
  }
};

size_t count_lines(const std::string& path) {
  std::ifstream in(path);
  std::string text;
  size_t n = 0;
  while (std::getline(in, text)) n += text.find_first_not_of(" \t\r") != std::string::npos;
  return n;
}

// The lines under way and what became of them.
struct Batch {
  std::mutex mutex;  // guards the members below and the output file
  std::condition_variable changed;
  size_t in_flight = 0;
  Progress progress;
  Result<void> written;
};

void finish_line(Batch& batch, OutputFile& output, const Line& line, const LocalAnswer& answer, int64_t now_ns) {
  const std::string text = result_line(line, answer);
  const std::lock_guard lock(batch.mutex);
  if (batch.written) batch.written = output.append(text);
  ++batch.progress.finished;
  if (answer.status != 200) ++batch.progress.failed;
  batch.progress.draw(now_ns, false);
  --batch.in_flight;
  batch.changed.notify_all();
}

}  // namespace

int generate(const GenerateOptions& options) {
  const auto complain = [](const std::string& message, int status) {
    std::fprintf(stderr, "deepinfer generate: %s\n", message.c_str());
    return status;
  };
  const Result<Json> constraint = constraint_members(options.constraint);
  if (!constraint) return complain(constraint.error().message, kUsage);
  std::ifstream input(options.input);
  if (!input) return complain(fmt::format("cannot read {}: {}", options.input, std::strerror(errno)), kUsage);
  OutputFile output;
  if (const Result<void> ok = output.open(options.output); !ok) return complain(ok.error().message, kUsage);

  const SystemClock clock;
  server::ServerConfig config;
  config.served_model_names = served_names(options.model);
  config.max_queue_wait_ms = 0;
  config.request_timeout_ms = 0;
  server::App app(config, clock);
  auto model = load_model(options.model, config.policy, clock);
  if (!model) return complain(model.error().message, model.error().exit_status);
  app.set_ready((*model)->service(clock));

  Batch batch;
  batch.progress.total = count_lines(options.input);
  batch.progress.started_ns = clock.now_ns();
  const auto limit =
      static_cast<size_t>(options.concurrency > 0 ? options.concurrency : 2 * options.model.max_num_seqs);
  std::string text;
  for (size_t number = 1; std::getline(input, text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    auto line =
        std::make_shared<Line>(read_line(text, number, config.served_model_names[0], (*model)->codec, *constraint));
    std::unique_lock lock(batch.mutex);
    if (output.has(line->custom_id)) {
      ++batch.progress.skipped;
      continue;
    }
    batch.changed.wait(lock, [&] { return batch.in_flight < limit || !batch.written; });
    if (!batch.written) break;
    ++batch.in_flight;
    lock.unlock();
    if (!line->error.empty()) {
      const server::ApiFailure failure{server::ErrorKind::kInvalidRequest, line->error, "invalid_json", {}, 0};
      finish_line(batch, output, *line,
                  {400, server::random_hex32(), server::error_body(failure, server::ErrorFamily::kOpenAi, "")},
                  clock.now_ns());
      continue;
    }
    post_chat(app, line->body, [&batch, &output, &clock, line](const LocalAnswer& answer) {
      finish_line(batch, output, *line, answer, clock.now_ns());
    });
  }
  {
    std::unique_lock lock(batch.mutex);
    batch.changed.wait(lock, [&] { return batch.in_flight == 0; });
    batch.progress.draw(clock.now_ns(), true);
  }
  app.stop_workers();
  model->reset();
  if (!batch.written) return complain(batch.written.error().message, kFailed);
  const Progress& p = batch.progress;
  std::fprintf(stderr, "%zu lines answered, %zu of them with an error; %zu were there already\n", p.finished, p.failed,
               p.skipped);
  return kOk;
}

}  // namespace di::cli
