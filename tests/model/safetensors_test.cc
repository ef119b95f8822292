#include "model/safetensors.h"

#include <random>

#include "support.h"

namespace di::model::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::span<const std::byte> as_bytes(const std::string& s) {
  return std::as_bytes(std::span(s));
}

FileTensors two_tensors() {
  FileTensors t;
  t["a.weight"] = FileTensor{"BF16", {2, 3}, std::string("\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c", 12)};
  t["b"] = FileTensor{"F32", {1}, std::string("\0\0\x80\x3f", 4)};
  return t;
}

TEST(Safetensors, ReadsAFile) {
  TempDir dir;
  write_file(dir.file("model.safetensors"), safetensors_bytes(two_tensors()));
  for (const std::string& path : {dir.path(), dir.file("model.safetensors")}) {
    const Result<Safetensors> file = Safetensors::open(path);
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->tensors().size(), 2U);
    const TensorView* a = file->find("a.weight");
    ASSERT_NE(a, nullptr);
    EXPECT_EQ(a->dtype, StoredType::kBf16);
    EXPECT_EQ(shape_text(a->shape), "[2, 3]");
    EXPECT_EQ(a->bytes, 12);
    EXPECT_EQ(std::memcmp(a->data, "\x01\x02\x03", 3), 0);
    EXPECT_EQ(a->file, "model.safetensors");
    EXPECT_EQ(file->find("c"), nullptr);
    EXPECT_EQ(file->file_bytes(), static_cast<int64_t>(std::filesystem::file_size(dir.file("model.safetensors"))));
  }
}

TEST(Safetensors, AcceptsMetadataScalarsEmptyTensorsAndEveryType) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"s":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)"
      R"("e":{"dtype":"I64","shape":[0,5],"data_offsets":[8,8]},"u":{"dtype":"U8","shape":[1],"data_offsets":[8,9]}}    )";
  const std::string bytes = safetensors_bytes(header, std::string(9, 'x'));
  const Result<Safetensors> file = Safetensors::from_memory(as_bytes(bytes), "m");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->find("s")->shape.size(), 0U);
  EXPECT_EQ(file->find("e")->bytes, 0);
  for (const char* type : {"BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "U16", "I16", "F16", "BF16", "U32",
                           "I32", "F32", "U64", "I64", "F64"}) {
    const std::string empty = fmt::format(R"({{"t":{{"dtype":"{}","shape":[0],"data_offsets":[0,0]}}}})", type);
    const std::string one = safetensors_bytes(empty, "");
    const Result<Safetensors> typed = Safetensors::from_memory(as_bytes(one), "m");
    ASSERT_TRUE(typed) << typed.error().message;
    EXPECT_EQ(to_string(typed->find("t")->dtype), type);
  }
}

TEST(Safetensors, StripsTheModelPrefix) {
  FileTensors t = two_tensors();
  t["model.layers.0.x"] = t["b"];
  const std::string bytes = safetensors_bytes(t);
  const Result<Safetensors> file = Safetensors::from_memory(as_bytes(bytes), "m");
  ASSERT_TRUE(file);
  EXPECT_NE(file->find("layers.0.x"), nullptr);
  EXPECT_EQ(file->find("model.layers.0.x"), nullptr);
}

TEST(Safetensors, BothSpellingsOfANameAreAnError) {
  FileTensors t = two_tensors();
  t["model.b"] = t["b"];
  const std::string bytes = safetensors_bytes(t);
  const Result<Safetensors> file = Safetensors::from_memory(as_bytes(bytes), "m");
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, Errc::kCorruption);
  EXPECT_THAT(file.error().message, AllOf(HasSubstr("tensor b: expected it once, with or without the prefix model.")));
}

// Header text, data size, and what the message must say.
struct BadFile {
  const char* header;
  size_t data;
  const char* expected;
  const char* found;
};

TEST(Safetensors, RefusesBrokenHeaders) {
  const std::vector<BadFile> cases = {
      {"{", 0, "header: expected JSON", "EOF while parsing an object"},
      {"[]", 0, "header: expected an object of tensors", "sequence"},
      {"{} x", 0, "header: expected JSON", "trailing characters"},
      {"\xff{}", 0, "header: expected JSON", "not valid UTF-8"},
      {R"({"t":3})", 0, "tensor t: expected an object with dtype, shape and data_offsets", "integer `3`"},
      {R"({"t":{"shape":[1],"data_offsets":[0,1]}})", 1, "tensor t: dtype: expected one of BOOL", "nothing"},
      {R"({"t":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", 1, "tensor t: dtype: expected one of",
       "string \"F4\""},
      {R"({"t":{"dtype":"bf16","shape":[1],"data_offsets":[0,2]}})", 2, "tensor t: dtype: expected one of", "\"bf16\""},
      {R"({"t":{"dtype":"U8","data_offsets":[0,1]}})", 1, "tensor t: shape: expected a list", "nothing"},
      {R"({"t":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1, "tensor t: shape: expected a list", "integer `1`"},
      {R"({"t":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1, "shape: expected sizes of 0 or more",
       "integer `-1`"},
      {R"({"t":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1, "shape: expected sizes of 0 or more",
       "floating"},
      {R"({"t":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,1]}})", 1,
       "tensor t: shape: expected fewer than 2^63 elements", "[4294967296, 4294967296]"},
      {R"({"t":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})", 0,
       "expected 2305843009213693952 elements of 8 bytes", "0 bytes"},
      {R"({"t":{"dtype":"U8","shape":[1]}})", 1, "tensor t: data_offsets: expected [begin, end]", "nothing"},
      {R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1, "data_offsets: expected [begin, end]", "[0]"},
      {R"({"t":{"dtype":"U8","shape":[1],"data_offsets":["0","1"]}})", 1, "data_offsets: expected [begin, end]",
       "[\"0\", \"1\"]"},
      {R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,2]}})", 1, "0 <= begin <= end <= 1", "[0, 2]"},
      {R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1, "0 <= begin <= end <= 1", "[1, 0]"},
      {R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}})", 1, "0 <= begin <= end <= 1", "[-1, 0]"},
      {R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,9223372036854775807]}})", 1, "end <= 1",
       "[0, 9223372036854775807]"},
      {R"({"t":{"dtype":"BF16","shape":[3],"data_offsets":[0,4]}})", 4, "expected 3 elements of 2 bytes (BF16 [3])",
       "4 bytes"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3, "tensor b: data_offsets: expected to begin at 2, where tensor a ends", "1 (they overlap)"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
       3, "tensor b: data_offsets: expected to begin at 1 (tensors lie back to back)", "2"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 5, "the data to end with the last tensor at 1",
       "5 bytes"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       1, "tensor a: expected each name once", "it twice"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\u0061":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       1, "tensor a: expected each name once", "it twice"},
  };
  for (const BadFile& c : cases) {
    const std::string bytes = safetensors_bytes(c.header, std::string(c.data, '\0'));
    const Result<Safetensors> file = Safetensors::from_memory(as_bytes(bytes), "dir/x.safetensors");
    ASSERT_FALSE(file) << c.header;
    EXPECT_EQ(file.error().code, Errc::kCorruption) << c.header;
    EXPECT_THAT(file.error().message, AllOf(HasSubstr("dir/x.safetensors: "), HasSubstr(c.expected),
                                            HasSubstr("found "), HasSubstr(c.found)));
  }
}

TEST(Safetensors, ChecksTheHeaderLengthAgainstTheFile) {
  std::string bytes = safetensors_bytes(two_tensors());
  const auto expect_error = [](const std::string& file, const std::string& text) {
    const Result<Safetensors> r = Safetensors::from_memory(as_bytes(file), "x");
    ASSERT_FALSE(r);
    EXPECT_THAT(r.error().message, HasSubstr(text));
  };
  expect_error("", "expected a header length of 8 bytes, found a file of 0 bytes");
  expect_error(bytes.substr(0, 7), "expected a header length of 8 bytes, found a file of 7 bytes");
  expect_error(bytes.substr(0, 8), "header length: expected 1 to 0 bytes (file size 8)");
  expect_error(bytes.substr(0, 40), "header length: expected 1 to 32 bytes (file size 40)");
  for (const uint64_t length : {uint64_t{0}, bytes.size() - 7, uint64_t{100'000'001}, UINT64_MAX}) {
    std::string broken = bytes;
    std::memcpy(broken.data(), &length, 8);
    expect_error(broken, fmt::format("found {}", length));
  }
  // A file cut anywhere is an error, and so is one with a byte too many.
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(Safetensors::from_memory(as_bytes(bytes.substr(0, n)), "x"));
  EXPECT_FALSE(Safetensors::from_memory(as_bytes(bytes + "x"), "x"));
}

class SafetensorsIndex : public ::testing::Test {
 protected:
  void SetUp() override {
    FileTensors t = two_tensors();
    write_file(dir_.file("one.safetensors"), safetensors_bytes(FileTensors{{"a.weight", t["a.weight"]}}));
    write_file(dir_.file("two.safetensors"), safetensors_bytes(FileTensors{{"b", t["b"]}}));
  }
  Result<Safetensors> open_with(std::string_view index) {
    write_file(dir_.file("model.safetensors.index.json"), index);
    return Safetensors::open(dir_.path());
  }
  void expect_error(std::string_view index, const std::string& text, Errc code = Errc::kCorruption) {
    const Result<Safetensors> r = open_with(index);
    ASSERT_FALSE(r) << index;
    EXPECT_EQ(r.error().code, code);
    EXPECT_THAT(r.error().message, AllOf(HasSubstr("model.safetensors.index.json"), HasSubstr(text)));
  }
  TempDir dir_;
};

TEST_F(SafetensorsIndex, JoinsShards) {
  const Result<Safetensors> r =
      open_with(R"({"metadata":{"total_size":16},"weight_map":{"a.weight":"one.safetensors","b":"two.safetensors"}})");
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_EQ(r->tensors().size(), 2U);
  EXPECT_EQ(r->find("b")->file, "two.safetensors");
  EXPECT_EQ(r->files().size(), 2U);
}

TEST_F(SafetensorsIndex, RefusesBrokenIndexes) {
  expect_error(R"({})", "weight_map: expected an object of tensor names, found nothing");
  expect_error(R"({"weight_map":[]})", "weight_map: expected an object of tensor names, found sequence");
  expect_error(R"({"weight_map":{}})", "weight_map: expected at least one tensor, found none");
  expect_error(R"({"weight_map")", "line 1");
  expect_error(R"({"weight_map":{"a.weight":3}})",
               "tensor a.weight: expected the name of a shard in the same folder, found integer");
  expect_error(R"({"weight_map":{"a.weight":"../one.safetensors"}})",
               "expected the name of a shard in the same folder");
  expect_error(R"({"weight_map":{"a.weight":"three.safetensors"}})",
               "shard three.safetensors: expected it in the same folder, found no such file");
  expect_error(R"({"weight_map":{"a.weight":"one.safetensors","c":"two.safetensors"}})",
               "tensor c: expected it in two.safetensors, found it in no shard");
  expect_error(R"({"weight_map":{"a.weight":"two.safetensors","b":"one.safetensors"}})",
               "tensor a.weight: expected it in two.safetensors, found it in one.safetensors");
  expect_error(R"({"weight_map":{"b":"two.safetensors","model.b":"two.safetensors"}})",
               "tensor b: expected it once, with or without the prefix model., found b and model.b");
}

TEST_F(SafetensorsIndex, ANameInTwoShardsIsAnError) {
  write_file(dir_.file("three.safetensors"), safetensors_bytes(FileTensors{{"model.b", two_tensors()["b"]}}));
  expect_error(R"({"weight_map":{"b":"two.safetensors","model.b":"three.safetensors"}})",
               "tensor b: expected it once, with or without the prefix model., found it in three.safetensors and in "
               "two.safetensors");
}

TEST_F(SafetensorsIndex, ABrokenShardIsNamed) {
  write_file(dir_.file("two.safetensors"), "short");
  const Result<Safetensors> r = open_with(R"({"weight_map":{"a.weight":"one.safetensors","b":"two.safetensors"}})");
  ASSERT_FALSE(r);
  EXPECT_THAT(r.error().message, HasSubstr(dir_.file("two.safetensors") + ": expected a header length of 8 bytes"));
}

TEST_F(SafetensorsIndex, ReadsWhatTheMapHolds) {
  const auto file = open_with(R"({"weight_map":{"a.weight":"one.safetensors","b":"two.safetensors"}})");
  ASSERT_TRUE(file) << file.error().message;
  std::vector<std::byte> copy;
  for (const TensorView& t : file->tensors()) {
    const auto n = static_cast<size_t>(t.bytes);
    for (const size_t begin : {size_t{0}, n / 3}) {
      copy.assign(n - begin, std::byte{0x55});
      ASSERT_TRUE(file->read(copy.data(), t.data + begin, n - begin));
      EXPECT_EQ(std::memcmp(copy.data(), t.data + begin, n - begin), 0) << t.name;
    }
  }
  const std::byte elsewhere[3] = {std::byte{1}, std::byte{2}, std::byte{3}};
  ASSERT_TRUE(file->read(copy.data(), elsewhere, 3));
  EXPECT_EQ(std::memcmp(copy.data(), elsewhere, 3), 0);
}

TEST(Safetensors, AFileThatHasBecomeShorterIsAnErrorOfTheRead) {
  TempDir dir;
  write_file(dir.file("model.safetensors"), safetensors_bytes(two_tensors()));
  const auto file = Safetensors::open(dir.path());
  ASSERT_TRUE(file) << file.error().message;
  std::filesystem::resize_file(dir.file("model.safetensors"), 16);
  const TensorView& t = file->tensors().back();
  std::vector<std::byte> copy(static_cast<size_t>(t.bytes));
  const Result<void> read = file->read(copy.data(), t.data, copy.size());
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, Errc::kCorruption);
  EXPECT_NE(read.error().message.find("model.safetensors: expected "), std::string::npos) << read.error().message;
}

TEST(Safetensors, NothingThereIsNotFound) {
  TempDir dir;
  for (const std::string& path : {dir.path(), dir.file("x.safetensors")}) {
    const Result<Safetensors> r = Safetensors::open(path);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code, Errc::kNotFound);
    EXPECT_THAT(r.error().message,
                AllOf(HasSubstr(path), HasSubstr("expected model.safetensors.index.json or model.safetensors")));
  }
}

// Flipped, inserted and removed bytes, mostly in the header: never a crash, and whatever opens has its tensors inside
// the file.
TEST(Safetensors, AnyBytesAreSafe) {
  constexpr uint32_t kSeed = 20260729;
  std::mt19937 random(kSeed);
  const std::string good = safetensors_bytes(two_tensors());
  int opened = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    const int edits = 1 + static_cast<int>(random() % 3);
    for (int e = 0; e < edits && !bytes.empty(); ++e) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = "0123456789[]{},:\"-"[random() % 18];
          break;
        case 2:
          bytes.erase(at, 1 + random() % 4);
          break;
        default:
          bytes.insert(at, 1, "0123456789[]{},:\"\\"[random() % 18]);
          break;
      }
    }
    const Result<Safetensors> file = Safetensors::from_memory(as_bytes(bytes), "x");
    if (!file) {
      EXPECT_EQ(file.error().message.find('\n'), std::string::npos);
      continue;
    }
    ++opened;
    for (const TensorView& t : file->tensors()) {
      ASSERT_GE(t.data, as_bytes(bytes).data()) << "seed " << kSeed << " round " << round;
      ASSERT_LE(t.data + t.bytes, as_bytes(bytes).data() + bytes.size());
    }
  }
  EXPECT_GT(opened, 0);  // edits of names and of data
}

}  // namespace
}  // namespace di::model::tests
