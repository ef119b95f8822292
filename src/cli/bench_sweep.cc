// deepinfer bench sweep (server.md §15.4): `bench serve` for every point of a grid of its options, into a table and a
// page that shows which points no other one beats.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "cli/bench_report.h"
#include "cli/options.h"
#include "cli/terminal.h"

namespace di::cli {
namespace {

struct Axis {
  std::string name;
  std::vector<std::string> values;
};

struct Point {
  std::vector<std::string> at;  // one value per axis
  BenchRun run;
  bool best = false;  // no other has more tokens per second and each of its requests faster

  double throughput() const { return run.summary.output_rate(); }
  // Tokens per second that one user sees.
  double per_user() const {
    const double tpot = percentile(run.summary.metrics[1].values, 50);
    return tpot > 0 ? 1e3 / tpot : 0;
  }
};

// NAME=VALUE,VALUE…
Result<Axis> parse_axis(const std::string& text) {
  Axis axis;
  const std::size_t equals = text.find('=');
  axis.name = text.substr(0, equals);
  constexpr const char* kNames[] = {"max-concurrency", "request-rate", "input-len", "output-len", "num-prompts"};
  const bool known = std::find(std::begin(kNames), std::end(kNames), axis.name) != std::end(kNames);
  if (!known || equals == std::string::npos)
    return fail(Errc::kInvalidRequest, "--grid {}: expected NAME=VALUE,VALUE with NAME one of {}", text,
                fmt::join(kNames, ", "));
  for (std::size_t at = equals + 1; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    axis.values.push_back(text.substr(at, comma - at));
    char* end = nullptr;
    const double value = std::strtod(axis.values.back().c_str(), &end);
    if (end == axis.values.back().c_str() || *end != '\0' || value < 0)
      return fail(Errc::kInvalidRequest, "--grid {}: expected numbers, found '{}'", text, axis.values.back());
    at = comma + 1;
  }
  return axis;
}

void set_option(BenchServeOptions& o, const std::string& name, const std::string& value) {
  const double number = std::strtod(value.c_str(), nullptr);
  const auto whole = static_cast<int64_t>(number);
  if (name == "max-concurrency") o.max_concurrency = static_cast<int32_t>(whole);
  if (name == "request-rate") o.request_rate = number;
  if (name == "input-len") o.input_len = whole;
  if (name == "output-len") o.output_len = whole;
  if (name == "num-prompts") o.num_prompts = whole;
}

std::vector<std::vector<std::string>> all_points(const std::vector<Axis>& axes) {
  std::vector<std::vector<std::string>> out = {{}};
  for (const Axis& axis : axes) {
    std::vector<std::vector<std::string>> longer;
    for (const auto& point : out) {
      for (const std::string& value : axis.values) {
        longer.push_back(point);
        longer.back().push_back(value);
      }
    }
    out = std::move(longer);
  }
  return out;
}

void mark_best(std::vector<Point>& points) {
  for (Point& point : points) {
    point.best = std::none_of(points.begin(), points.end(), [&](const Point& other) {
      const bool no_worse = other.throughput() >= point.throughput() && other.per_user() >= point.per_user();
      return no_worse && (other.throughput() > point.throughput() || other.per_user() > point.per_user());
    });
  }
}

std::string csv_of(const std::vector<Axis>& axes, const std::vector<Point>& points) {
  std::string out;
  for (const Axis& axis : axes) out += axis.name + ",";
  out += "completed,failed,duration_s,request_throughput,output_throughput,total_token_throughput,tokens_per_user";
  for (const BenchMetric& metric : points[0].run.summary.metrics)
    out += fmt::format(",mean_{0}_ms,median_{0}_ms,p99_{0}_ms", metric.key);
  out += ",client_valid,pareto\n";
  for (const Point& point : points) {
    const BenchSummary& s = point.run.summary;
    for (const std::string& value : point.at) out += value + ",";
    out += fmt::format("{},{},{:.3f},{:.3f},{:.3f},{:.3f},{:.3f}", s.completed, s.failed, s.duration_s,
                       s.request_rate(), s.output_rate(), s.total_rate(), point.per_user());
    for (const BenchMetric& metric : s.metrics)
      out += fmt::format(",{:.3f},{:.3f},{:.3f}", mean_of(metric.values), percentile(metric.values, 50),
                         percentile(metric.values, 99));
    out += fmt::format(",{},{}\n", lag_p99_ms(point.run.report) <= kMostLagMs, point.best);
  }
  return out;
}

constexpr double kWidth = 720;
constexpr double kHeight = 420;
constexpr double kMargin = 60;

std::string label_of(const std::vector<Axis>& axes, const Point& point) {
  std::string out;
  for (std::size_t i = 0; i < axes.size(); ++i)
    out += fmt::format("{}{} {}", i == 0 ? "" : ", ", axes[i].name, point.at[i]);
  return out;
}

// One page without outside resources: throughput over speed for each user, and the table.
std::string html_of(const std::vector<Axis>& axes, const std::vector<Point>& points, const std::string& model) {
  double most_x = 0;
  double most_y = 0;
  for (const Point& point : points) {
    most_x = std::max(most_x, point.per_user());
    most_y = std::max(most_y, point.throughput());
  }
  const auto x = [&](double v) { return kMargin + (kWidth - 2 * kMargin) * v / std::max(most_x * 1.05, 1e-9); };
  const auto y = [&](double v) {
    return kHeight - kMargin - (kHeight - 2 * kMargin) * v / std::max(most_y * 1.05, 1e-9);
  };
  std::string escaped;
  for (const char c : model) escaped += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  std::string out = fmt::format(
      "<!doctype html><meta charset=\"utf-8\"><title>Sweep of {0}</title><style>body{{font:15px sans-serif;margin:2em;"
      "color:#222;background:#fff}}table{{border-collapse:collapse}}td,th{{padding:.2em .7em;text-align:right;"
      "border-bottom:1px solid #ccc}}.best{{font-weight:bold}}</style><h1>Sweep of {0}</h1><p>Filled points and bold "
      "rows: "
      "none of the others has more tokens per second both in all and for each user.</p>"
      "<svg viewBox=\"0 0 {1} {2}\" width=\"{1}\" role=\"img\" aria-label=\"throughput over tokens per second and "
      "user\">"
      "<path d=\"M{3} {3}V{4}H{5}\" fill=\"none\" stroke=\"#444\"/><text x=\"{6}\" y=\"{7}\" "
      "text-anchor=\"middle\">tokens/s "
      "and user (0 to {8:.4g})</text><text x=\"{3}\" y=\"40\">output tokens/s (0 to {9:.4g})</text>",
      escaped, kWidth, kHeight, kMargin, kHeight - kMargin, kWidth - kMargin, kWidth / 2, kHeight - 20, most_x * 1.05,
      most_y * 1.05);
  std::vector<const Point*> front;
  for (const Point& point : points) {
    if (point.best) front.push_back(&point);
  }
  std::sort(front.begin(), front.end(), [](const Point* a, const Point* b) { return a->per_user() < b->per_user(); });
  out += "<polyline fill=\"none\" stroke=\"#06c\" points=\"";
  for (const Point* point : front) out += fmt::format("{:.1f},{:.1f} ", x(point->per_user()), y(point->throughput()));
  out += "\"/>";
  for (const Point& point : points)
    out += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\" fill=\"{}\" stroke=\"#06c\"><title>{}</title></circle>",
        x(point.per_user()), y(point.throughput()), point.best ? "#06c" : "#fff", label_of(axes, point));
  out += "</svg><table><tr>";
  for (const Axis& axis : axes) out += "<th>" + axis.name;
  out +=
      "<th>requests/s<th>output tokens/s<th>tokens/s and user<th>median TTFT ms<th>p99 TTFT ms<th>median TPOT "
      "ms<th>failed";
  for (const Point& point : points) {
    const BenchSummary& s = point.run.summary;
    out += fmt::format("<tr{}>", point.best ? " class=\"best\"" : "");
    for (const std::string& value : point.at) out += "<td>" + value;
    out += fmt::format("<td>{:.2f}<td>{:.1f}<td>{:.1f}<td>{:.1f}<td>{:.1f}<td>{:.2f}<td>{}", s.request_rate(),
                       s.output_rate(), point.per_user(), percentile(s.metrics[0].values, 50),
                       percentile(s.metrics[0].values, 99), percentile(s.metrics[1].values, 50), s.failed);
  }
  return out + "</table>\n";
}

Result<void> write(const std::string& path, const std::string& text) {
  if (path.empty()) return {};
  std::ofstream file(path, std::ios::trunc);
  file << text;
  file.flush();
  if (!file) return fail(Errc::kUnavailable, "cannot write {}", path);
  return {};
}

Result<std::vector<Point>> measure(const BenchSweepOptions& options, const std::vector<Axis>& axes) {
  std::vector<Point> points;
  const auto grid = all_points(axes);
  for (const auto& at : grid) {
    BenchServeOptions o = options.serve;
    for (std::size_t i = 0; i < axes.size(); ++i) set_option(o, axes[i].name, at[i]);
    Point point{.at = at, .run = DI_TRY(run_bench(o))};
    std::fprintf(stderr, "%zu of %zu: %s: %.1f tokens/s, %.1f for each user\n", points.size() + 1, grid.size(),
                 label_of(axes, point).c_str(), point.throughput(), point.per_user());
    points.push_back(std::move(point));
    if (interrupt_flag().load()) break;
  }
  mark_best(points);
  return points;
}

}  // namespace

int bench_sweep(const BenchSweepOptions& options) {
  const auto failed = [](const Error& error) {
    std::fprintf(stderr, "deepinfer bench sweep: %s\n", error.message.c_str());
    return error.code == Errc::kInvalidRequest ? kUsage : kFailed;
  };
  std::vector<Axis> axes;
  for (const std::string& text : options.grid) {
    Result<Axis> axis = parse_axis(text);
    if (!axis) return failed(axis.error());
    axes.push_back(std::move(*axis));
  }
  catch_interrupts();
  const Result<std::vector<Point>> points = measure(options, axes);
  if (!points) return failed(points.error());
  const std::string csv = csv_of(axes, *points);
  if (options.csv.empty()) std::fputs(csv.c_str(), stdout);
  if (const Result<void> ok = write(options.csv, csv); !ok) return failed(ok.error());
  if (const Result<void> ok = write(options.html, html_of(axes, *points, (*points)[0].run.options.model)); !ok)
    return failed(ok.error());
  const bool whole =
      std::all_of(points->begin(), points->end(), [](const Point& p) { return p.run.summary.failed == 0; });
  return interrupt_flag().load() ? 130 : whole ? kOk : kFailed;
}

}  // namespace di::cli
