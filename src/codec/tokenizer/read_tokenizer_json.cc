// Reads tokenizer.json with simdjson's on-demand parser: the file holds 128 000 vocabulary entries and as many merges,
// which are consumed in order without building a document. Everything that the encoder relies on is checked, so that a
// tokenizer of another form is refused and never silently encoded wrongly.
#include <simdjson.h>

#include <algorithm>

#include "codec/tokenizer/byte_level.h"
#include "codec/tokenizer/tokenizer_impl.h"

namespace di::codec {

namespace {

namespace sj = simdjson::ondemand;

constexpr std::string_view kSplits[3] = {
    R"(\p{N}{1,3})", "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

// One spelling for patterns that differ in harmless escapes: \" is ", and CR and LF may stand raw or as \r and \n.
std::string canonical_pattern(std::string_view pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '\\' && i + 1 < pattern.size() && pattern[i + 1] != '"') {
      out.append(pattern.substr(i++, 2));
    } else if (pattern[i] == '\\') {
      continue;
    } else if (pattern[i] == '\r') {
      out += "\\r";
    } else if (pattern[i] == '\n') {
      out += "\\n";
    } else {
      out.push_back(pattern[i]);
    }
  }
  return out;
}

class Reader {
 public:
  Reader(const std::string& name, const TokenizerOptions& options, Tokenizer::Impl& impl)
      : name_(name), options_(options), impl_(impl) {}

  Result<void> read(std::string_view json) {
    const simdjson::padded_string padded(json);
    sj::parser parser;
    sj::document document;
    if (parser.iterate(padded).get(document) != simdjson::SUCCESS) return broken("is not JSON");
    sj::object root;
    if (document.get_object().get(root) != simdjson::SUCCESS) return broken("is not a JSON object");
    bool model_seen = false;
    bool splits_seen = false;
    for (auto entry : root) {
      sj::field field;
      if (std::move(entry).get(field) != simdjson::SUCCESS) return broken("is not valid JSON");
      std::string_view key;
      if (field.unescaped_key().get(key) != simdjson::SUCCESS) return broken("has an invalid key");
      if (key == "added_tokens") {
        DI_TRY(read_added(field.value()));
      } else if (key == "normalizer") {
        DI_TRY(check_normalizer(field.value()));
      } else if (key == "pre_tokenizer") {
        DI_TRY(check_pre_tokenizer(field.value()));
        splits_seen = true;
      } else if (key == "decoder") {
        DI_TRY(check_decoder(field.value()));
      } else if (key == "model") {
        DI_TRY(read_model(field.value()));
        model_seen = true;
      }
    }
    if (!model_seen) return broken("has no member `model`");
    if (!splits_seen) return broken("has no member `pre_tokenizer`");
    return finish();
  }

 private:
  std::unexpected<Error> broken(std::string_view what) const { return fail(Errc::kCorruption, "{}: {}", name_, what); }

  Result<std::string> text_of(simdjson::simdjson_result<sj::value> value, std::string_view what) const {
    std::string_view text;
    if (value.get_string().get(text) != simdjson::SUCCESS) return broken(fmt::format("{} must be a string", what));
    return std::string(text);
  }

  Result<void> check_normalizer(sj::value value) {
    if (bool null = false; value.is_null().get(null) == simdjson::SUCCESS && null) return {};
    sj::array steps;
    if (value["normalizers"].get_array().get(steps) != simdjson::SUCCESS) {
      return broken("`normalizer` must be null or an empty Sequence");
    }
    for (auto step : steps) {
      static_cast<void>(step);
      return broken("`normalizer` must be null or an empty Sequence");
    }
    return {};
  }

  Result<void> check_decoder(sj::value value) {
    if (DI_TRY(text_of(value["type"], "`decoder.type`")) != "ByteLevel") return broken("`decoder` must be ByteLevel");
    return {};
  }

  Result<void> check_pre_tokenizer(sj::value value) {
    sj::array steps;
    if (value["pretokenizers"].get_array().get(steps) != simdjson::SUCCESS) {
      return broken("`pre_tokenizer` must be a Sequence of three Split and one ByteLevel");
    }
    size_t n = 0;
    for (auto item : steps) {
      sj::object step;
      if (std::move(item).get_object().get(step) != simdjson::SUCCESS || n > 3) {
        return broken("`pre_tokenizer` must be a Sequence of three Split and one ByteLevel");
      }
      DI_TRY(n < 3 ? check_split(step, n) : check_byte_level(step));
      ++n;
    }
    if (n != 4) return broken(fmt::format("`pre_tokenizer` must have 4 steps, found {}", n));
    return {};
  }

  Result<void> check_split(sj::object& step, size_t n) {
    const std::string pattern = DI_TRY(text_of(step["pattern"]["Regex"], fmt::format("split {}", n + 1)));
    const std::string behavior = DI_TRY(text_of(step["behavior"], "`behavior`"));
    bool invert = true;
    if (canonical_pattern(pattern) != canonical_pattern(kSplits[n]) || behavior != "Isolated" ||
        step["invert"].get_bool().get(invert) != simdjson::SUCCESS || invert) {
      return broken(fmt::format("split {} of `pre_tokenizer` must be `{}`, Isolated, found `{}`, {}", n + 1, kSplits[n],
                                pattern, behavior));
    }
    return {};
  }

  Result<void> check_byte_level(sj::object& step) {
    bool prefix_space = true;
    bool use_regex = true;
    if (step["add_prefix_space"].get_bool().get(prefix_space) != simdjson::SUCCESS || prefix_space ||
        step["use_regex"].get_bool().get(use_regex) != simdjson::SUCCESS || use_regex) {
      return broken("the last step of `pre_tokenizer` must be ByteLevel without prefix space and regex");
    }
    return {};
  }

  Result<void> read_added(sj::value value) {
    sj::array tokens;
    if (value.get_array().get(tokens) != simdjson::SUCCESS) return broken("`added_tokens` must be a list");
    for (auto item : tokens) {
      sj::object object;
      if (std::move(item).get_object().get(object) != simdjson::SUCCESS) return broken("an added token is no object");
      AddedToken token;
      int64_t id = -1;
      if (object["id"].get_int64().get(id) != simdjson::SUCCESS || id < 0 || id > kMaxId) {
        return broken("an added token has no valid `id`");
      }
      token.id = static_cast<TokenId>(id);
      token.text = DI_TRY(text_of(object["content"], fmt::format("`content` of added token {}", id)));
      for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
        bool on = false;
        if (object[flag].get_bool().get(on) == simdjson::SUCCESS && on) {
          return broken(fmt::format("added token {} has `{}`, which is not supported", id, flag));
        }
      }
      if (object["normalized"].get_bool().get(token.normalized) != simdjson::SUCCESS) token.normalized = false;
      if (object["special"].get_bool().get(token.special) != simdjson::SUCCESS) token.special = false;
      if (const auto rename = options_.rename_added.find(token.id); rename != options_.rename_added.end()) {
        token.text = rename->second;
      }
      impl_.added.push_back(std::move(token));
    }
    return {};
  }

  Result<void> read_model(sj::value value) {
    sj::object model;
    if (value.get_object().get(model) != simdjson::SUCCESS) return broken("`model` must be an object");
    DI_TRY(check_model(model));
    sj::object vocab;
    size_t entries = 0;
    if (model["vocab"].get_object().get(vocab) != simdjson::SUCCESS ||
        vocab.count_fields().get(entries) != simdjson::SUCCESS) {
      return broken("`model.vocab` must be an object");
    }
    impl_.bpe.reserve(entries, entries);
    std::string bytes;
    for (auto entry : vocab) {
      sj::field field;
      std::string_view text;
      int64_t id = -1;
      if (std::move(entry).get(field) != simdjson::SUCCESS || field.unescaped_key().get(text) != simdjson::SUCCESS ||
          field.value().get_int64().get(id) != simdjson::SUCCESS || id < 0 || id > kMaxId) {
        return broken("`model.vocab` must map strings to ids");
      }
      if (text.empty()) return broken("`model.vocab` has an empty entry");
      if (from_byte_level(text, bytes)) {
        impl_.bpe.add_token(bytes, static_cast<TokenId>(id));
      } else {
        other_vocab_.emplace_back(static_cast<TokenId>(id), std::string(text));  // no merge can make it
      }
      top_id_ = std::max(top_id_, id);
    }
    DI_TRY(read_merges(model));
    if (Result<void> done = impl_.bpe.finish(ignore_merges_); !done) return broken(done.error().message);
    return {};
  }

  Result<void> check_model(sj::object& model) {
    std::string_view type;
    if (model["type"].get_string().get(type) == simdjson::SUCCESS && type != "BPE") {
      return broken(fmt::format("`model.type` must be BPE, found {}", type));
    }
    for (const char* key : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
      sj::value value;
      bool null = false;
      if (model[key].get(value) != simdjson::SUCCESS) continue;
      std::string_view text;
      if (value.is_null().get(null) == simdjson::SUCCESS && null) continue;
      if (value.get_string().get(text) == simdjson::SUCCESS && text.empty()) continue;
      return broken(fmt::format("`model.{}` must be null", key));
    }
    bool fallback = false;
    if (model["byte_fallback"].get_bool().get(fallback) == simdjson::SUCCESS && fallback) {
      return broken("`model.byte_fallback` must be false");
    }
    if (model["ignore_merges"].get_bool().get(ignore_merges_) != simdjson::SUCCESS) ignore_merges_ = false;
    return {};
  }

  Result<void> read_merges(sj::object& model) {
    sj::array merges;
    if (model["merges"].get_array().get(merges) != simdjson::SUCCESS) return broken("`model.merges` must be a list");
    std::string sides[2];
    std::string text;
    for (auto item : merges) {
      sj::value merge;
      if (std::move(item).get(merge) != simdjson::SUCCESS) return broken("`model.merges` is not valid JSON");
      std::string_view line;
      std::string_view parts[2];
      sj::array pair;
      if (merge.get_string().get(line) == simdjson::SUCCESS) {
        const size_t space = line.find(' ');
        if (space == std::string_view::npos) return broken("an entry of `model.merges` has no space");
        parts[0] = line.substr(0, space);
        parts[1] = line.substr(space + 1);
      } else if (merge.get_array().get(pair) == simdjson::SUCCESS) {
        size_t n = 0;
        for (auto side : pair) {
          if (n == 2 || std::move(side).get_string().get(parts[n]) != simdjson::SUCCESS) {
            return broken("an entry of `model.merges` must have two strings");
          }
          ++n;
        }
        if (n != 2) return broken("an entry of `model.merges` must have two strings");
      } else {
        return broken("an entry of `model.merges` must be a string or a list");
      }
      if (!from_byte_level(parts[0], sides[0]) || !from_byte_level(parts[1], sides[1])) {
        return broken("an entry of `model.merges` has a character outside the byte-level alphabet");
      }
      if (Result<void> added = impl_.bpe.add_merge(sides[0], sides[1]); !added) return broken(added.error().message);
    }
    return {};
  }

  Result<void> finish() {
    for (const AddedToken& token : impl_.added) top_id_ = std::max<int64_t>(top_id_, token.id);
    const auto n = static_cast<size_t>(top_id_ + 1);
    impl_.bytes.resize(n);
    impl_.flags.resize(n);
    for (size_t id = 0; id < n; ++id) impl_.bytes[id] = impl_.bpe.bytes_of(static_cast<TokenId>(id));
    for (auto& [id, text] : other_vocab_) set_bytes(id, std::move(text));
    std::string bytes;
    for (const AddedToken& token : impl_.added) {
      set_bytes(token.id, from_byte_level(token.text, bytes) ? bytes : token.text);
      impl_.flags[static_cast<size_t>(token.id)] =
          static_cast<uint8_t>(Tokenizer::Impl::kAdded | (token.special ? Tokenizer::Impl::kSpecial : 0));
      impl_.added_by_text.emplace(token.text, token.id);
      (token.normalized ? impl_.second_pass : impl_.first_pass).add(token.text, token.id);
    }
    return {};
  }

  void set_bytes(TokenId id, std::string bytes) {
    impl_.bytes[static_cast<size_t>(id)] = impl_.extra_bytes.emplace_back(std::move(bytes));
  }

  static constexpr int64_t kMaxId = (1 << 21) - 1;

  const std::string& name_;
  const TokenizerOptions& options_;
  Tokenizer::Impl& impl_;
  std::vector<std::pair<TokenId, std::string>> other_vocab_;
  int64_t top_id_ = -1;
  bool ignore_merges_ = false;
};

}  // namespace

Result<void> read_tokenizer_json(std::string_view json, const std::string& name, const TokenizerOptions& options,
                                 Tokenizer::Impl& impl) {
  return Reader(name, options, impl).read(json);
}

}  // namespace di::codec
