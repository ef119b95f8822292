#include "model/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>

#include "base/json.h"

namespace di::model {
namespace {

struct TypeName {
  StoredType type;
  std::string_view name;
  int64_t size;
};

constexpr std::array kTypes = {
    TypeName{StoredType::kBool, "BOOL", 1},      TypeName{StoredType::kU8, "U8", 1},
    TypeName{StoredType::kI8, "I8", 1},          TypeName{StoredType::kF8E4m3, "F8_E4M3", 1},
    TypeName{StoredType::kF8E5m2, "F8_E5M2", 1}, TypeName{StoredType::kF8E8m0, "F8_E8M0", 1},
    TypeName{StoredType::kU16, "U16", 2},        TypeName{StoredType::kI16, "I16", 2},
    TypeName{StoredType::kF16, "F16", 2},        TypeName{StoredType::kBf16, "BF16", 2},
    TypeName{StoredType::kU32, "U32", 4},        TypeName{StoredType::kI32, "I32", 4},
    TypeName{StoredType::kF32, "F32", 4},        TypeName{StoredType::kU64, "U64", 8},
    TypeName{StoredType::kI64, "I64", 8},        TypeName{StoredType::kF64, "F64", 8},
};

constexpr int64_t kMaxHeader = 100'000'000;
constexpr size_t kMaxRank = 64;
constexpr std::string_view kPrefix = "model.";
constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";

std::string_view strip_prefix(std::string_view name) {
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
}

// One mapped file, open for reads as well; closing unmaps. An empty file cannot be mapped and needs no mapping.
class Mapping {
 public:
  static Result<Mapping> open(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
      return fail(errno == ENOENT ? Errc::kNotFound : Errc::kUnavailable, "{}: expected a readable file, found {}",
                  path, std::strerror(errno));
    }
    struct stat info = {};
    Mapping m;
    m.path_ = path;
    m.fd_ = fd;
    int error = ::fstat(fd, &info) != 0 ? errno : 0;
    if (error == 0 && !S_ISREG(info.st_mode)) error = S_ISDIR(info.st_mode) ? EISDIR : EINVAL;
    if (error == 0 && info.st_size > 0) {
      void* p = ::mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
      if (p == MAP_FAILED) {
        error = errno;
      } else {
        m.data_ = static_cast<const std::byte*>(p);
        m.size_ = static_cast<size_t>(info.st_size);
      }
    }
    if (error != 0)
      return fail(Errc::kUnavailable, "{}: expected a readable file, found {}", path, std::strerror(error));
    return m;
  }

  Mapping(Mapping&& other) noexcept
      : path_(std::move(other.path_)),
        fd_(std::exchange(other.fd_, -1)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(fd_, other.fd_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Mapping() {
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
    if (fd_ >= 0) ::close(fd_);
  }

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  bool holds(const std::byte* at) const { return std::less_equal<>{}(data_, at) && std::less<>{}(at, data_ + size_); }

  // What is in the page cache is copied as it is; of the rest the disk is asked for all before its beginning is waited
  // for.
  Result<void> read(std::byte* to, const std::byte* from, size_t bytes) const {
    bool waits = false;
    for (size_t done = 0; done < bytes;) {
      const auto offset = static_cast<off_t>(from - data_ + static_cast<ptrdiff_t>(done));
      const iovec rest{to + done, bytes - done};
      const ssize_t n = ::preadv2(fd_, &rest, 1, offset, waits ? 0 : RWF_NOWAIT);
      if (n > 0) {
        done += static_cast<size_t>(n);
      } else if (!waits) {
        waits = true;
        ::posix_fadvise(fd_, offset, static_cast<off_t>(bytes - done), POSIX_FADV_WILLNEED);
      } else if (n == 0) {
        return fail(Errc::kCorruption, "{}: expected {} bytes, found that it ends at {}", path_, size_, offset);
      } else if (errno != EINTR) {
        return fail(Errc::kUnavailable, "{}: cannot be read at {}: {}", path_, offset, std::strerror(errno));
      }
    }
    return {};
  }

 private:
  Mapping() = default;
  std::string path_;
  int fd_ = -1;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// A tensor of one file, as its header describes it.
struct Entry {
  std::string name;  // as written
  StoredType dtype = StoredType::kF32;
  std::vector<int64_t> shape;
  int64_t begin = 0;
  int64_t end = 0;
};

// The first key of the outermost object that occurs twice. `header` is valid JSON. (parse_json keeps one of equal
// keys.)
std::optional<std::string> duplicate_key(std::string_view header) {
  std::vector<std::string> keys;
  int depth = 0;
  bool key_next = false;
  for (size_t i = 0; i < header.size(); ++i) {
    const char c = header[i];
    if (c == '{' || c == '[') {
      ++depth;
      key_next = depth == 1;
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (c == ',') {
      key_next = depth == 1;
    } else if (c == '"') {
      const size_t start = i++;
      while (header[i] != '"') i += header[i] == '\\' ? 2 : 1;
      if (key_next) {
        const Result<Json> key = parse_json(header.substr(start, i + 1 - start));  // spellings differ by escapes
        if (key) keys.push_back(key->as_string());
      }
      key_next = false;
    }
  }
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice == keys.end()) return std::nullopt;
  return *twice;
}

template <class... Args>
std::unexpected<Error> corrupt(fmt::format_string<Args...> format, Args&&... args) {
  return fail(Errc::kCorruption, format, std::forward<Args>(args)...);
}

Result<StoredType> read_type(const Json& tensor, std::string_view file, std::string_view name) {
  const Json* dtype = tensor.find("dtype");
  const std::string* text = dtype != nullptr ? dtype->if_string() : nullptr;
  for (const TypeName& t : kTypes) {
    if (text != nullptr && *text == t.name) return t.type;
  }
  return corrupt(
      "{}: tensor {}: dtype: expected one of BOOL, U8, I8, F8_E4M3, F8_E5M2, F8_E8M0, U16, I16, F16, BF16, U32, I32, "
      "F32, U64, I64, F64, found {}",
      file, name, dtype != nullptr ? describe_json(*dtype) : "nothing");
}

// The shape and the number of elements.
Result<int64_t> read_shape(const Json& tensor, std::string_view file, std::string_view name,
                           std::vector<int64_t>& shape) {
  const Json* value = tensor.find("shape");
  const Json::Array* items = value != nullptr ? value->if_array() : nullptr;
  if (items == nullptr || items->size() > kMaxRank) {
    return corrupt("{}: tensor {}: shape: expected a list of at most {} sizes, found {}", file, name, kMaxRank,
                   items != nullptr   ? fmt::format("{} sizes", items->size())
                   : value != nullptr ? describe_json(*value)
                                      : "nothing");
  }
  int64_t elements = 1;
  for (const Json& item : *items) {
    const std::optional<int64_t> n = item.to_i64();
    if (!n || *n < 0) {
      return corrupt("{}: tensor {}: shape: expected sizes of 0 or more, found {}", file, name, describe_json(item));
    }
    shape.push_back(*n);
    if (__builtin_mul_overflow(elements, *n, &elements)) {
      return corrupt("{}: tensor {}: shape: expected fewer than 2^63 elements, found {}", file, name,
                     shape_text(shape));
    }
  }
  return elements;
}

Result<Entry> read_entry(const JsonMember& member, std::string_view file, int64_t data_bytes) {
  const std::string& name = member.key;
  const Json& tensor = member.value;
  if (!tensor.is_object()) {
    return corrupt("{}: tensor {}: expected an object with dtype, shape and data_offsets, found {}", file, name,
                   describe_json(tensor));
  }
  Entry e;
  e.name = name;
  e.dtype = DI_TRY(read_type(tensor, file, name));
  const int64_t elements = DI_TRY(read_shape(tensor, file, name, e.shape));
  const Json* offsets = tensor.find("data_offsets");
  const Json::Array* pair = offsets != nullptr ? offsets->if_array() : nullptr;
  const std::optional<int64_t> begin = pair != nullptr && pair->size() == 2 ? (*pair)[0].to_i64() : std::nullopt;
  const std::optional<int64_t> end = pair != nullptr && pair->size() == 2 ? (*pair)[1].to_i64() : std::nullopt;
  if (!begin || !end) {
    return corrupt("{}: tensor {}: data_offsets: expected [begin, end], found {}", file, name,
                   offsets != nullptr ? to_json(*offsets, JsonStyle::kSpaced).substr(0, 80) : "nothing");
  }
  if (*begin < 0 || *end < *begin || *end > data_bytes) {
    return corrupt("{}: tensor {}: data_offsets: expected 0 <= begin <= end <= {} (the file's data), found [{}, {}]",
                   file, name, data_bytes, *begin, *end);
  }
  int64_t bytes = 0;
  if (__builtin_mul_overflow(elements, size_of(e.dtype), &bytes) || bytes != *end - *begin) {
    return corrupt("{}: tensor {}: data_offsets: expected {} elements of {} bytes ({} {}), found {} bytes", file, name,
                   elements, size_of(e.dtype), to_string(e.dtype), shape_text(e.shape), *end - *begin);
  }
  e.begin = *begin;
  e.end = *end;
  return e;
}

// Tensors lie back to back and fill the data: nothing overlaps, nothing is unaccounted for.
Result<void> check_coverage(const std::vector<Entry>& entries, std::string_view file, int64_t data_bytes) {
  std::vector<const Entry*> order;
  for (const Entry& e : entries) order.push_back(&e);
  std::sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
    return a->begin != b->begin ? a->begin < b->begin : a->end < b->end;
  });
  int64_t at = 0;
  const Entry* before = nullptr;
  for (const Entry* e : order) {
    if (e->begin < at) {
      return corrupt(
          "{}: tensor {}: data_offsets: expected to begin at {}, where tensor {} ends, found {} (they overlap)", file,
          e->name, at, before->name, e->begin);
    }
    if (e->begin > at) {
      return corrupt("{}: tensor {}: data_offsets: expected to begin at {} (tensors lie back to back), found {}", file,
                     e->name, at, e->begin);
    }
    at = e->end;
    before = e;
  }
  if (at != data_bytes) {
    return corrupt("{}: expected the data to end with the last tensor at {}, found {} bytes of data", file, at,
                   data_bytes);
  }
  return {};
}

struct Header {
  std::vector<Entry> entries;
  int64_t data_offset = 0;  // of the data in the file
};

Result<Header> read_header(std::span<const std::byte> bytes, std::string_view file) {
  const auto size = static_cast<int64_t>(bytes.size());
  if (size < 8) return corrupt("{}: expected a header length of 8 bytes, found a file of {} bytes", file, size);
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  const int64_t most = std::min(kMaxHeader, size - 8);
  if (length < 1 || length > static_cast<uint64_t>(std::max<int64_t>(most, 0))) {
    return corrupt("{}: header length: expected 1 to {} bytes (file size {}), found {}", file, most, size, length);
  }
  Header header;
  header.data_offset = 8 + static_cast<int64_t>(length);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, length);
  const Result<Json> json = parse_json(text);
  if (!json) return corrupt("{}: header: expected JSON, found invalid text: {}", file, json.error().message);
  if (!json->is_object())
    return corrupt("{}: header: expected an object of tensors, found {}", file, describe_json(*json));
  if (const std::optional<std::string> name = duplicate_key(text)) {
    return corrupt("{}: tensor {}: expected each name once, found it twice in the header", file, *name);
  }
  const int64_t data_bytes = size - header.data_offset;
  for (const JsonMember& member : json->as_object()) {
    if (member.key == "__metadata__") continue;
    header.entries.push_back(DI_TRY(read_entry(member, file, data_bytes)));
  }
  DI_TRY(check_coverage(header.entries, file, data_bytes));
  return header;
}

struct Index {
  std::vector<std::string> shards;                      // in order of first mention
  std::vector<std::pair<std::string, size_t>> tensors;  // name as written, shard
};

Result<Index> read_index(const std::string& path) {
  const Result<Json> root = parse_json_file(path);
  if (!root)
    return fail(root.error().code == Errc::kNotFound ? Errc::kNotFound : Errc::kCorruption, "{}", root.error().message);
  const Json* map = root->find("weight_map");
  if (map == nullptr || !map->is_object()) {
    return corrupt("{}: weight_map: expected an object of tensor names, found {}", path,
                   map != nullptr ? describe_json(*map) : "nothing");
  }
  Index index;
  std::unordered_map<std::string, size_t> shard_numbers;
  for (const JsonMember& member : map->as_object()) {
    const std::string* shard = member.value.if_string();
    if (shard == nullptr || shard->empty() || shard->find('/') != std::string::npos || *shard == "." ||
        *shard == ".." || shard->find('\0') != std::string::npos) {
      return corrupt("{}: tensor {}: expected the name of a shard in the same folder, found {}", path, member.key,
                     describe_json(member.value));
    }
    const auto [at, is_new] = shard_numbers.try_emplace(*shard, index.shards.size());
    if (is_new) index.shards.push_back(*shard);
    index.tensors.emplace_back(member.key, at->second);
  }
  if (index.tensors.empty()) return corrupt("{}: weight_map: expected at least one tensor, found none", path);
  return index;
}

bool is_file(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

}  // namespace

int64_t size_of(StoredType type) {
  for (const TypeName& t : kTypes) {
    if (t.type == type) return t.size;
  }
  return 0;
}

std::string_view to_string(StoredType type) {
  for (const TypeName& t : kTypes) {
    if (t.type == type) return t.name;
  }
  return "?";
}

std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

struct Safetensors::State {
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;
  };

  std::string path;
  std::deque<std::string> files;  // deques: views point into them
  std::deque<Tensor> owned;
  std::vector<Mapping> mappings;
  std::vector<TensorView> views;  // ascending by name
  int64_t file_bytes = 0;

  Result<void> add_file(std::span<const std::byte> bytes, std::string_view shown, std::string_view name);
  Result<void> finish();
};

Result<void> Safetensors::State::add_file(std::span<const std::byte> bytes, std::string_view shown,
                                          std::string_view name) {
  Header header = DI_TRY(read_header(bytes, shown));
  const std::string& file = files.emplace_back(name);
  file_bytes += static_cast<int64_t>(bytes.size());
  for (Entry& e : header.entries) {
    const Tensor& t = owned.emplace_back(Tensor{std::move(e.name), std::move(e.shape)});
    TensorView v;
    v.name = strip_prefix(t.name);
    v.dtype = e.dtype;
    v.shape = t.shape;
    v.data = bytes.data() + header.data_offset + e.begin;
    v.bytes = e.end - e.begin;
    v.file = file;
    views.push_back(v);
  }
  return {};
}

// Sorts the views; a name must occur once over all shards and in one spelling.
Result<void> Safetensors::State::finish() {
  std::sort(views.begin(), views.end(), [](const TensorView& a, const TensorView& b) {
    return a.name != b.name ? a.name < b.name : a.file < b.file;
  });
  const auto twice = std::adjacent_find(views.begin(), views.end(),
                                        [](const TensorView& a, const TensorView& b) { return a.name == b.name; });
  if (twice == views.end()) return {};
  return corrupt("{}: tensor {}: expected it once, with or without the prefix model., found it in {} and in {}", path,
                 twice->name, twice->file, (twice + 1)->file);
}

Safetensors::Safetensors(std::unique_ptr<State> state) : state_(std::move(state)) {}
Safetensors::Safetensors(Safetensors&&) noexcept = default;
Safetensors& Safetensors::operator=(Safetensors&&) noexcept = default;
Safetensors::~Safetensors() = default;

Result<Safetensors> Safetensors::from_memory(std::span<const std::byte> bytes, std::string_view file) {
  auto state = std::make_unique<State>();
  state->path = file;
  DI_TRY(state->add_file(bytes, file, file));
  DI_TRY(state->finish());
  return Safetensors(std::move(state));
}

Result<Safetensors> Safetensors::open(const std::string& path) {
  struct stat info = {};
  const bool folder = stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  std::string file = path;
  if (folder) {
    file = fmt::format("{}/{}", path, kIndexName);
    if (!is_file(file)) file = fmt::format("{}/{}", path, kSingleName);
  }
  if (!is_file(file)) {
    return fail(Errc::kNotFound, "{}: expected {} or {}, found neither", path, kIndexName, kSingleName);
  }
  auto state = std::make_unique<State>();
  state->path = file;
  if (!file.ends_with(".json")) {
    state->mappings.push_back(DI_TRY(Mapping::open(file)));
    DI_TRY(state->add_file(state->mappings.back().bytes(), file, file.substr(file.find_last_of('/') + 1)));
    DI_TRY(state->finish());
    return Safetensors(std::move(state));
  }

  const Index index = DI_TRY(read_index(file));
  const std::string base = file.substr(0, file.find_last_of('/') + 1);
  for (const std::string& shard : index.shards) {
    if (!is_file(base + shard))
      return corrupt("{}: shard {}: expected it in the same folder, found no such file", file, shard);
    state->mappings.push_back(DI_TRY(Mapping::open(base + shard)));
    DI_TRY(state->add_file(state->mappings.back().bytes(), base + shard, shard));
  }
  DI_TRY(state->finish());
  Safetensors out(std::move(state));
  std::map<std::string_view, std::string_view> spelled;
  for (const auto& [name, shard] : index.tensors) {
    const auto [other, is_new] = spelled.try_emplace(strip_prefix(name), name);
    if (!is_new) {
      return corrupt("{}: tensor {}: expected it once, with or without the prefix model., found {} and {}", file,
                     strip_prefix(name), other->second, name);
    }
    const TensorView* view = out.find(strip_prefix(name));
    if (view == nullptr || view->file != index.shards[shard]) {
      return corrupt("{}: tensor {}: expected it in {}, found {}", file, name, index.shards[shard],
                     view == nullptr ? "it in no shard" : fmt::format("it in {}", view->file));
    }
  }
  return out;
}

const TensorView* Safetensors::find(std::string_view name) const {
  const auto& v = state_->views;
  const auto at =
      std::lower_bound(v.begin(), v.end(), name, [](const TensorView& t, std::string_view n) { return t.name < n; });
  return at != v.end() && at->name == name ? &*at : nullptr;
}

std::span<const TensorView> Safetensors::tensors() const {
  return state_->views;
}
std::vector<std::string> Safetensors::files() const {
  return {state_->files.begin(), state_->files.end()};
}
int64_t Safetensors::file_bytes() const {
  return state_->file_bytes;
}
const std::string& Safetensors::path() const {
  return state_->path;
}

Result<void> Safetensors::read(std::byte* to, const std::byte* from, size_t bytes) const {
  for (const Mapping& mapping : state_->mappings) {
    if (mapping.holds(from)) return mapping.read(to, from, bytes);
  }
  std::memcpy(to, from, bytes);
  return {};
}

}  // namespace di::model
