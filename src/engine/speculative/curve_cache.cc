#include "engine/speculative/curve_cache.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/rng.h"
#include "base/sha256.h"

namespace di::engine {
namespace {

namespace fs = std::filesystem;

constexpr size_t kKeyDigits = 64;
constexpr size_t kNameDigits = 32;

bool is_hex(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// The time in a file's name; nothing for files of another form, which are none of ours.
std::optional<int64_t> time_of(std::string_view name) {
  constexpr size_t kHead = kKeyDigits + 1 + kNameDigits + 1;
  if (name.size() <= kHead || name[kKeyDigits] != '.' || name[kHead - 1] != '.') return std::nullopt;
  if (!is_hex(name.substr(0, kKeyDigits)) || !is_hex(name.substr(kKeyDigits + 1, kNameDigits))) return std::nullopt;
  int64_t seconds = 0;
  const auto [end, error] = std::from_chars(name.data() + kHead, name.data() + name.size(), seconds);
  if (error != std::errc{} || end != name.data() + name.size() || seconds < 0) return std::nullopt;
  return seconds;
}

std::optional<CostCurve> parse_curve(const fs::path& file, std::span<const int32_t> sizes) {
  std::ifstream in(file, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const Result<Json> json = parse_json(text);
  if (!json || !json->is_array() || json->size() != sizes.size()) return std::nullopt;
  std::vector<CurvePoint> points;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Json& pair = json->as_array()[i];
    if (!pair.is_array() || pair.size() != 2) return std::nullopt;
    const std::optional<int64_t> size = pair.as_array()[0].to_i64();
    const std::optional<double> ms = pair.as_array()[1].to_double();
    if (!size || *size != sizes[i] || !ms) return std::nullopt;
    points.push_back({sizes[i], *ms});
  }
  Result<CostCurve> curve = CostCurve::create(std::move(points));
  return curve ? std::optional(std::move(*curve)) : std::nullopt;
}

}  // namespace

std::string curve_key(std::string_view model, std::span<const int32_t> sizes) {
  Json batch_sizes(Json::Array{});
  for (const int32_t s : sizes) batch_sizes.push_back(Json(s));
  Json parallel(Json::Object{});
  for (const char* part : {"cp", "dp", "ep"}) parallel.set(part, Json(1));
  Json key(Json::Object{});
  key.set("batch_sizes", std::move(batch_sizes));
  key.set("model", Json(model));
  key.set("parallel_config", std::move(parallel));
  key.set("time_unit", Json("ms"));
  return to_hex(sha256(to_json(key)));
}

std::optional<CostCurve> CurveCache::read(std::string_view key, std::span<const int32_t> sizes, int64_t now) const {
  std::vector<std::pair<int64_t, fs::path>> found;
  std::error_code ec;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, ec)) {
    const std::string name = entry.path().filename().string();
    const std::optional<int64_t> time = time_of(name);
    if (time && name.starts_with(key) && *time <= now && now - *time <= kLifetimeSeconds)
      found.emplace_back(*time, entry.path());
  }
  std::ranges::sort(found, std::greater<>());
  for (const auto& [time, file] : found) {
    if (std::optional<CostCurve> curve = parse_curve(file, sizes)) return curve;
  }
  return std::nullopt;
}

Result<void> CurveCache::write(std::string_view key, const CostCurve& curve, int64_t now) const {
  std::error_code ec;
  fs::create_directories(folder_, ec);
  if (ec) return fail(Errc::kInternal, "{}: {}", folder_.string(), ec.message());
  std::vector<fs::path> old;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, ec)) {
    const std::optional<int64_t> time = time_of(entry.path().filename().string());
    if (time && now - *time > kRemovedAfterSeconds) old.push_back(entry.path());
  }
  for (const fs::path& file : old) fs::remove(file, ec);

  Json json(Json::Array{});
  for (const CurvePoint& p : curve.points()) json.push_back(Json(Json::Array{Json(p.size), Json(p.ms)}));
  const std::string name = fmt::format("{}.{:016x}{:016x}.{}", key, random_u64(), random_u64(), now);
  const fs::path file = folder_ / name;
  const fs::path unfinished = folder_ / (name + ".tmp");
  {
    std::ofstream out(unfinished, std::ios::binary);
    out << to_json(json) << '\n';
    out.close();
    if (!out) {
      fs::remove(unfinished, ec);
      return fail(Errc::kInternal, "{}: cannot be written", unfinished.string());
    }
  }
  fs::rename(unfinished, file, ec);
  if (ec) return fail(Errc::kInternal, "{}: {}", file.string(), ec.message());
  return {};
}

}  // namespace di::engine
