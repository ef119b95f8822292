#include "codec/prompt/replay.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <list>
#include <mutex>
#include <sstream>
#include <unordered_map>

#include "base/json.h"
#include "base/sha256.h"

namespace di::codec {

namespace {

// Members in the order of their keys and whole numbers as integers (JavaScript sends 1.0 back as 1), so that equal
// values are written alike.
Json sorted(const Json& value) {
  if (value.kind() == Json::Kind::kDouble) {
    const double number = *value.to_double();
    return number == std::floor(number) && std::abs(number) < 0x1p53 ? Json(static_cast<int64_t>(number)) : value;
  }
  if (const Json::Array* list = value.if_array()) {
    Json::Array out;
    for (const Json& item : *list) out.push_back(sorted(item));
    return out;
  }
  const Json::Object* object = value.if_object();
  if (object == nullptr) return value;
  Json::Object out;
  for (const JsonMember& member : *object) out.push_back({member.key, sorted(member.value)});
  std::sort(out.begin(), out.end(), [](const JsonMember& a, const JsonMember& b) { return a.key < b.key; });
  return out;
}

Sha256 digest_of(const std::vector<ToolCall>& calls) {
  std::string text;
  JsonWriter w(text);
  w.begin_array();
  for (const ToolCall& call : calls) {
    const Result<Json> arguments = parse_json(call.arguments);
    w.begin_array().value(call.id).value(call.name);
    w.value(arguments ? sorted(*arguments) : Json(call.arguments)).end_array();
  }
  w.end_array();
  return sha256(text);
}

std::string key_of(std::string_view tenant, const std::vector<ToolCall>& calls) {
  std::string key(tenant);
  key.push_back('\0');
  return key + calls[0].id;
}

struct Entry {
  std::string key;
  Sha256 calls;
  Sha256 content;
  Sha256 reasoning;
  int64_t made_s = 0;  // Unix seconds
  ReplayRef tokens;

  size_t bytes() const { return sizeof(Entry) + 2 * key.size() + tokens->ids.size() * sizeof(TokenId) + 128; }
};

// The file: the magic, the identity and a line feed, entries, the SHA-256 of all that.
constexpr std::string_view kMagic = "deepinfer-replay-1\n";

void put_number(std::string& out, uint64_t n) {
  for (int shift = 0; shift < 64; shift += 8) out.push_back(static_cast<char>(n >> shift));
}

void put_entry(std::string& out, const Entry& entry) {
  put_number(out, entry.key.size());
  out += entry.key;
  for (const Sha256* digest : {&entry.calls, &entry.content, &entry.reasoning}) {
    out.append(reinterpret_cast<const char*>(digest->data()), digest->size());
  }
  put_number(out, static_cast<uint64_t>(entry.made_s));
  put_number(out, entry.tokens->thinking ? 1 : 0);
  put_number(out, entry.tokens->ids.size());
  out.append(reinterpret_cast<const char*>(entry.tokens->ids.data()), entry.tokens->ids.size() * sizeof(TokenId));
}

class FileReader {
 public:
  explicit FileReader(std::string_view rest) : rest_(rest) {}
  bool done() const { return rest_.empty(); }

  bool bytes(void* to, uint64_t n) {
    if (n > rest_.size()) return false;
    if (n > 0) std::memcpy(to, rest_.data(), n);
    rest_.remove_prefix(n);
    return true;
  }
  bool number(uint64_t& n) {
    unsigned char raw[8];
    if (!bytes(raw, 8)) return false;
    n = 0;
    for (int i = 0; i < 8; ++i) n |= uint64_t{raw[i]} << (8 * i);
    return true;
  }
  bool entry(Entry& out) {
    uint64_t n = 0;
    if (!number(n) || n > rest_.size()) return false;
    out.key.resize(n);
    uint64_t made = 0;
    uint64_t thinking = 0;
    if (!bytes(out.key.data(), n) || !bytes(out.calls.data(), 32) || !bytes(out.content.data(), 32) ||
        !bytes(out.reasoning.data(), 32) || !number(made) || !number(thinking) || !number(n) ||
        n > rest_.size() / sizeof(TokenId)) {
      return false;
    }
    ReplayTokens tokens;
    tokens.thinking = thinking != 0;
    tokens.ids.resize(n);
    out.made_s = static_cast<int64_t>(made);
    if (!bytes(tokens.ids.data(), n * sizeof(TokenId))) return false;
    out.tokens = std::make_shared<const ReplayTokens>(std::move(tokens));
    return true;
  }

 private:
  std::string_view rest_;
};

}  // namespace

struct ReplayStore::State {
  State(ReplayOptions o, const Clock& c) : options(std::move(o)), clock(c) {}

  const ReplayOptions options;
  const Clock& clock;
  mutable std::mutex mutex;                                                    // guards what follows
  std::list<Entry> entries;                                                    // most recently used first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> positions;  // keys point into the entries
  size_t bytes = 0;
  uint64_t hits = 0;
  uint64_t misses = 0;
  bool unsaved = false;
  int64_t saved_s = 0;    // Unix seconds
  std::mutex save_mutex;  // one writer of the file; taken before `mutex`

  std::string head() const { return fmt::format("{}{}\n", kMagic, options.identity); }

  void remove(std::list<Entry>::iterator entry) {
    bytes -= entry->bytes();
    positions.erase(entry->key);
    entries.erase(entry);
  }
  bool expired(const Entry& entry) const { return clock.unix_seconds() - entry.made_s > options.max_age_s; }

  // The tokens of a message with calls, unless it is unknown, too old or changed; then null. Takes the lock.
  ReplayRef find(std::string_view tenant, const Message& message) {
    const std::string key = key_of(tenant, *message.tool_calls);
    const Sha256 calls = digest_of(*message.tool_calls);
    const auto same = [](const std::string& text, const Sha256& digest) {
      return text.empty() || sha256(text) == digest;
    };
    const std::lock_guard lock(mutex);
    const auto at = positions.find(key);
    if (at == positions.end()) return nullptr;
    if (expired(*at->second)) {
      remove(at->second);
      return nullptr;
    }
    if (at->second->calls != calls || !same(message.content.text, at->second->content) ||
        !same(message.reasoning_content.value_or(""), at->second->reasoning)) {
      return nullptr;
    }
    entries.splice(entries.begin(), entries, at->second);
    return at->second->tokens;
  }

  void insert(Entry entry) {
    if (const auto old = positions.find(entry.key); old != positions.end()) remove(old->second);
    bytes += entry.bytes();
    entries.push_front(std::move(entry));
    positions.emplace(entries.front().key, entries.begin());
    while (bytes > options.max_bytes) remove(std::prev(entries.end()));
  }

  void read() {
    std::ifstream in(options.file, std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    const std::string all = std::move(text).str();
    const std::string before = head();
    if (!all.starts_with(before) || all.size() < before.size() + 32) return;
    const std::string_view body = std::string_view(all).substr(0, all.size() - 32);
    if (std::memcmp(sha256(body).data(), all.data() + body.size(), 32) != 0) return;
    FileReader reader(body.substr(before.size()));
    while (!reader.done()) {
      Entry entry;
      if (!reader.entry(entry)) return;
      if (!expired(entry)) insert(std::move(entry));
    }
  }
};

ReplayStore::ReplayStore(ReplayOptions options, const Clock& clock)
    : state_(std::make_unique<State>(std::move(options), clock)) {
  state_->saved_s = clock.unix_seconds();
  if (!state_->options.file.empty()) state_->read();
}
ReplayStore::~ReplayStore() = default;

void ReplayStore::put(std::string_view tenant, const ReplayTurn& turn, ReplayTokens tokens) {
  if (turn.calls.empty() || tokens.ids.empty()) return;
  Entry entry;
  entry.key = key_of(tenant, turn.calls);
  entry.calls = digest_of(turn.calls);
  entry.content = sha256(turn.content);
  entry.reasoning = sha256(turn.reasoning);
  entry.made_s = state_->clock.unix_seconds();
  entry.tokens = std::make_shared<const ReplayTokens>(std::move(tokens));
  const std::lock_guard lock(state_->mutex);
  state_->insert(std::move(entry));
  state_->unsaved = true;
}

ReplayRef ReplayStore::find(std::string_view tenant, const Message& message) {
  if (!message.tool_calls || message.tool_calls->empty()) return nullptr;
  const ReplayRef tokens = state_->find(tenant, message);
  const std::lock_guard lock(state_->mutex);
  ++(tokens != nullptr ? state_->hits : state_->misses);
  return tokens;
}

bool ReplayStore::knows(std::string_view tenant, const Message& message) {
  if (!message.tool_calls || message.tool_calls->empty()) return false;
  const ReplayRef tokens = state_->find(tenant, message);
  return tokens != nullptr && tokens->thinking;
}

Result<void> ReplayStore::save_if_older(int64_t seconds) {
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->unsaved || state_->clock.unix_seconds() - state_->saved_s < seconds) return {};
  }
  return save();
}

Result<void> ReplayStore::save() {
  const std::string& file = state_->options.file;
  if (file.empty()) return {};
  const std::lock_guard writing(state_->save_mutex);
  std::string text = state_->head();
  {
    const std::lock_guard lock(state_->mutex);
    state_->unsaved = false;
    state_->saved_s = state_->clock.unix_seconds();
    for (auto entry = state_->entries.rbegin(); entry != state_->entries.rend(); ++entry) put_entry(text, *entry);
  }
  const Sha256 digest = sha256(text);
  text.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  const std::string temporary = file + ".new";
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  size_t written = 0;
  while (fd >= 0 && written < text.size()) {
    const ssize_t n = write(fd, text.data() + written, text.size() - written);
    if (n <= 0) break;
    written += static_cast<size_t>(n);
  }
  const bool whole = fd >= 0 && written == text.size();
  if (fd >= 0 && close(fd) != 0) return fail(Errc::kUnavailable, "{}: cannot be written", temporary);
  if (!whole || std::rename(temporary.c_str(), file.c_str()) != 0) {
    return fail(Errc::kUnavailable, "{}: cannot be written: {}", file, std::strerror(errno));
  }
  return {};
}

ReplayStore::Stats ReplayStore::stats() const {
  const std::lock_guard lock(state_->mutex);
  return {state_->entries.size(), state_->bytes, state_->hits, state_->misses};
}

ReplayTokens replay_tokens(std::span<const TokenId> prompt, std::span<const TokenId> output, TokenId assistant,
                           TokenId eos, bool thinking_mode) {
  ReplayTokens tokens;
  tokens.thinking = thinking_mode;
  const auto last = std::find(prompt.rbegin(), prompt.rend(), assistant);
  if (last == prompt.rend()) return tokens;
  tokens.ids.assign(last.base(), prompt.end());
  tokens.ids.insert(tokens.ids.end(), output.begin(), output.end());
  if (tokens.ids.empty() || tokens.ids.back() != eos) tokens.ids.push_back(eos);
  return tokens;
}

size_t attach_replays(Conversation& conversation, std::string_view tenant, ReplayStore& store) {
  size_t found = 0;
  if (!conversation.tools_on()) return found;
  for (Message& message : conversation.messages) {
    if (message.role != Message::Role::kAssistant || message.prefix) continue;
    message.replay = store.find(tenant, message);
    if (message.replay != nullptr && message.replay->thinking == conversation.thinking_mode) ++found;
  }
  return found;
}

}  // namespace di::codec
