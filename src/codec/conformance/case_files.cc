#include "codec/conformance/case_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "codec/api/describe.h"

namespace di::codec {

void ConformanceResult::add(const std::string& name, const std::string& problem) {
  if (problem.empty()) {
    ++passed;
    return;
  }
  ++failed;
  failures.push_back(name + ": " + problem);
}

namespace conformance {

namespace {

std::vector<std::filesystem::path> files_of(const std::string& dir, const char* extension) {
  std::vector<std::filesystem::path> files;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(dir, ignored)) {
    if (entry.path().extension() == extension) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

void for_each_case(const std::string& dir, ConformanceResult& result,
                   const std::function<void(const Json&, const std::string&)>& use_line,
                   const std::function<void(const Json&, const std::string&)>& use_file) {
  if (!std::filesystem::is_directory(dir)) {
    result.add(dir, "no such folder");
    return;
  }
  for (const auto& path : files_of(dir, ".jsonl")) {
    std::ifstream in(path, std::ios::binary);
    if (!in) result.add(path.filename().string(), "cannot be read");
    int number = 0;
    for (std::string line; std::getline(in, line);) {
      const std::string where = fmt::format("{}:{}", path.filename().string(), ++number);
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      const Result<Json> value = parse_json(line);
      if (value) {
        use_line(*value, where);
      } else {
        result.add(where, value.error().message);
      }
    }
  }
  for (const auto& path : files_of(dir, ".json")) {
    const std::string name = path.filename().string();
    if (name.starts_with("tokenizer")) continue;  // helper files
    const Result<Json> value = parse_json_file(path.string());
    if (value) {
      use_file(*value, name);
    } else {
      result.add(name, value.error().message);
    }
  }
}

Result<Tokenizers> load_tokenizers(const std::string& dir, const std::string& vectors_dir, bool need_v41) {
  const auto find = [&](const std::string& name) {
    const std::string own = dir + "/" + name;
    return std::filesystem::exists(own) ? own : vectors_dir + "/" + name;
  };
  Tokenizers out;
  out.v4 = DI_TRY(Tokenizer::load(find("tokenizer.json")));
  if (!need_v41) return out;
  const Json patch = DI_TRY(parse_json_file(find("tokenizer_v41_patch.json")));
  TokenizerOptions options;
  const Json* renames = DI_TRY(json_member(patch, "rename_added_tokens"));
  if (!renames->is_object())
    return fail(Errc::kCorruption, "tokenizer_v41_patch.json: `rename_added_tokens` is no map");
  for (const JsonMember& member : renames->as_object()) {
    options.rename_added[static_cast<TokenId>(std::strtol(member.key.c_str(), nullptr, 10))] =
        std::string(DI_TRY(text_at(*renames, member.key)));
  }
  out.v41 = DI_TRY(Tokenizer::load(find("tokenizer.json"), options));
  return out;
}

Result<std::vector<TokenId>> ids_of(const Json& list) {
  if (!list.is_array()) return fail(Errc::kCorruption, "expected a list of ids, found {}", describe_json(list));
  std::vector<TokenId> ids;
  for (const Json& item : list.as_array()) {
    const std::optional<int64_t> id = item.to_i64();
    if (!id) return fail(Errc::kCorruption, "expected an id, found {}", describe_json(item));
    ids.push_back(static_cast<TokenId>(*id));
  }
  return ids;
}

Result<std::vector<TokenId>> ids_at(const Json& object, std::string_view key) {
  const Json* list = DI_TRY(json_member(object, key));
  return ids_of(*list);
}

std::string difference(std::string_view what, std::string_view expected, std::string_view found) {
  if (expected == found) return {};
  size_t at = 0;
  while (at < expected.size() && at < found.size() && expected[at] == found[at]) ++at;
  const size_t from = at > 60 ? at - 60 : 0;
  const auto cut = [&](std::string_view text) {
    std::string out = from > 0 ? "…" : "";
    append_json_escaped(out, text.substr(std::min(from, text.size()), 240));
    return out + (text.size() > from + 240 ? "…" : "");
  };
  return fmt::format("{} differs at byte {}: expected `{}`, found `{}`", what, at, cut(expected), cut(found));
}

std::string id_of(const Json& c, const std::string& where) {
  const Json* id = c.find_value("id");
  return id != nullptr && id->is_string() ? id->as_string() : where;
}

Result<const Json*> member_at(const Json& object, std::string_view key) {
  return json_member(object, key);
}

Result<std::string_view> text_at(const Json& object, std::string_view key) {
  const Json* member = DI_TRY(json_member(object, key));
  if (!member->is_string())
    return fail(Errc::kCorruption, "`{}`: expected a string, found {}", key, describe_json(*member));
  return std::string_view(member->as_string());
}

Result<Api> api_of(const Json& c) {
  return api_from_name(DI_TRY(text_at(c, "api")));
}

}  // namespace conformance

}  // namespace di::codec
