#include "kv/conformance.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/json.h"
#include "kv/block_hash.h"

namespace di::kv {
namespace {

namespace fs = std::filesystem;

Result<std::string> unhex(const Json* value, std::string_view what) {
  const std::string* text = value == nullptr ? nullptr : value->if_string();
  if (text == nullptr || text->size() % 2 != 0) return fail(Errc::kInvalidRequest, "{}: expected hex text", what);
  std::string out;
  for (size_t i = 0; i < text->size(); i += 2) {
    unsigned byte = 0;
    for (const char c : text->substr(i, 2)) {
      const auto digit = std::string_view("0123456789abcdef").find(c);
      if (digit == std::string_view::npos) return fail(Errc::kInvalidRequest, "{}: '{}' is no hex digit", what, c);
      byte = byte * 16 + static_cast<unsigned>(digit);
    }
    out.push_back(static_cast<char>(byte));
  }
  return out;
}

Result<int64_t> integer(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  const std::optional<int64_t> n = value == nullptr ? std::nullopt : value->to_i64();
  if (!n) return fail(Errc::kInvalidRequest, "{}: expected an integer", key);
  return *n;
}

Result<const Json::Array*> array(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  const Json::Array* out = value == nullptr ? nullptr : value->if_array();
  if (out == nullptr) return fail(Errc::kInvalidRequest, "{}: expected an array", key);
  return out;
}

struct HashCase {
  std::map<uint16_t, std::string> fields;
  int32_t block_tokens = 0;
  std::vector<int32_t> tokens;
  std::vector<MediaSpan> media;
  std::string root;
  std::vector<std::string> blocks;
};

Result<HashCase> read_hash_case(const Json& json) {
  HashCase out;
  const Json* fields = json.find("fields");
  if (fields == nullptr || !fields->is_object()) return fail(Errc::kInvalidRequest, "fields: expected an object");
  for (const JsonMember& member : fields->as_object()) {
    out.fields[static_cast<uint16_t>(std::strtoul(member.key.c_str(), nullptr, 10))] =
        DI_TRY(unhex(&member.value, "fields." + member.key));
  }
  out.block_tokens = static_cast<int32_t>(DI_TRY(integer(json, "block_tokens")));
  if (out.block_tokens < 1) return fail(Errc::kInvalidRequest, "block_tokens: expected 1 or more");
  for (const Json& token : *DI_TRY(array(json, "tokens"))) {
    const std::optional<int64_t> id = token.to_i64();
    if (!id || *id < 0 || *id > INT32_MAX) return fail(Errc::kInvalidRequest, "tokens: expected token ids");
    out.tokens.push_back(static_cast<int32_t>(*id));
  }
  if (json.find("media") != nullptr) {
    for (const Json& item : *DI_TRY(array(json, "media"))) {
      MediaSpan span;
      span.start = DI_TRY(integer(item, "start"));
      span.length = static_cast<uint32_t>(DI_TRY(integer(item, "length")));
      const std::string digest = DI_TRY(unhex(item.find("digest"), "media.digest"));
      if (digest.size() != span.digest.size()) return fail(Errc::kInvalidRequest, "media.digest: expected 32 bytes");
      std::copy(digest.begin(), digest.end(), span.digest.begin());
      out.media.push_back(span);
    }
  }
  const Json* root = json.find("root");
  if (root == nullptr || !root->is_string()) return fail(Errc::kInvalidRequest, "root: expected hex text");
  out.root = root->as_string();
  for (const Json& block : *DI_TRY(array(json, "blocks"))) {
    if (!block.is_string()) return fail(Errc::kInvalidRequest, "blocks: expected hex texts");
    out.blocks.push_back(block.as_string());
  }
  return out;
}

KvCase run_hash_case(std::string name, const Json& json) {
  const Result<HashCase> c = read_hash_case(json);
  if (!c) return {std::move(name), false, "cannot run: " + c.error().message};
  const BlockKey root = root_key(c->fields);
  if (to_hex(root) != c->root) return {std::move(name), false, "root: expected " + c->root + ", found " + to_hex(root)};
  std::vector<BlockKey> keys;
  const auto size = static_cast<size_t>(c->block_tokens);
  for (size_t first = 0; first < c->tokens.size(); first += size) {
    const auto block = std::span(c->tokens).subspan(first, std::min(size, c->tokens.size() - first));
    const BlockKey& parent = keys.empty() ? root : keys.back();
    keys.push_back(block_key(parent, block, static_cast<int64_t>(first), c->block_tokens, c->media));
  }
  if (keys.size() != c->blocks.size()) {
    return {std::move(name), false, fmt::format("expected {} blocks, found {}", c->blocks.size(), keys.size())};
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    if (to_hex(keys[i]) == c->blocks[i]) continue;
    return {std::move(name), false, fmt::format("block {}: expected {}, found {}", i, c->blocks[i], to_hex(keys[i]))};
  }
  return {std::move(name), true, ""};
}

void run_hash_file(const fs::path& path, std::vector<KvCase>& out) {
  const std::string file = path.filename().string();
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  const Result<Json> json = parse_json(text.str());
  if (!json || !json->is_array()) {
    out.push_back({file, false, "cannot run: " + (json ? "expected a list of cases" : json.error().message)});
    return;
  }
  for (size_t i = 0; i < json->as_array().size(); ++i) {
    const Json& item = json->as_array()[i];
    const Json* name = item.find("name");
    out.push_back(run_hash_case(
        file + " " + (name != nullptr && name->is_string() ? name->as_string() : fmt::format("{}", i)), item));
  }
}

}  // namespace

std::vector<KvCase> run_kv_cases(const std::string& dir) {
  std::vector<KvCase> out;
  std::vector<fs::path> files;
  std::error_code ec;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir, ec)) files.push_back(entry.path());
  if (ec) out.push_back({dir, false, "cannot run: " + ec.message()});
  std::sort(files.begin(), files.end());
  for (const fs::path& path : files) {
    const std::string name = path.filename().string();
    if (path.extension() != ".json") continue;  // segments and traces belong to the .json that describes them
    if (name.starts_with("block_hash")) {
      run_hash_file(path, out);
    } else {
      out.push_back({name, false, "cannot run: no such kind of case is known"});
    }
  }
  return out;
}

}  // namespace di::kv
