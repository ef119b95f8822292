// The C interface over the C++ one: handles are structs that hold the C++ objects, every entry is wrapped so that no
// exception (of the standard library; ours are values) crosses.
#include <sys/stat.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <iterator>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "structured/c_api/deepinfer_structured.h"
#include "structured/c_api/spec_options.h"
#include "structured/structured.h"

namespace structured = di::structured;

struct di_structured_error {
  structured::CompileError error;
  std::string message;
};
struct di_structured_vocabulary {
  structured::VocabularyRef vocabulary;
};
struct di_structured_constraint {
  structured::CompiledRef compiled;
};
struct di_structured_matcher {
  structured::Matcher matcher;
  std::string text;  // the last forced text
};

namespace {

using structured::CompileError;
using structured::Expected;

di_structured_bytes view(std::string_view text) {
  return {text.data(), text.size()};
}

std::string_view text_of(const char* data, size_t size) {
  return data == nullptr ? std::string_view() : std::string_view(data, size);
}

std::span<const int32_t> ids_of(const int32_t* ids, size_t count) {
  return ids == nullptr ? std::span<const int32_t>() : std::span(ids, count);
}

void store(di_structured_error** target, CompileError error) {
  if (target == nullptr) return;
  std::string message = error.text();
  *target = new (std::nothrow) di_structured_error{std::move(error), std::move(message)};
}

// Runs body() -> T; `on_failure` where the standard library throws.
template <class T, class Body>
T quiet(T on_failure, const Body& body) noexcept {
  try {
    return body();
  } catch (...) {
    return on_failure;
  }
}

// Runs body() -> Expected<T*>; NULL and an error on failure.
template <class T, class Body>
T* made(di_structured_error** error, const Body& body) noexcept {
  if (error != nullptr) *error = nullptr;
  try {
    Expected<T*> outcome = body();
    if (outcome) return *outcome;
    store(error, std::move(outcome.error()));
  } catch (const std::exception& e) {
    quiet(0, [&] {
      store(error, {"internal", {}, {}, e.what()});
      return 0;
    });
  } catch (...) {
    quiet(0, [&] {
      store(error, {"internal", {}, {}, "unknown error"});
      return 0;
    });
  }
  return nullptr;
}

std::unexpected<CompileError> argument(const di::Error& error) {
  return structured::refuse("invalid_argument", error.message);
}

using MadeVocabulary = Expected<di_structured_vocabulary*>;

MadeVocabulary vocabulary_of(std::string_view json) {
  auto vocabulary = structured::Vocabulary::from_tokenizer_json(json);
  if (!vocabulary) return std::unexpected(vocabulary.error());
  return new di_structured_vocabulary{std::move(*vocabulary)};
}

}  // namespace

extern "C" {

int di_structured_abi_version(void) {
  return di_structured_abi;
}

di_structured_bytes di_structured_error_code(const di_structured_error* error) {
  return error == nullptr ? di_structured_bytes{} : view(error->error.code);
}
di_structured_bytes di_structured_error_message(const di_structured_error* error) {
  return error == nullptr ? di_structured_bytes{} : view(error->message);
}
di_structured_bytes di_structured_error_pointer(const di_structured_error* error) {
  return error == nullptr ? di_structured_bytes{} : view(error->error.pointer);
}
di_structured_bytes di_structured_error_keyword(const di_structured_error* error) {
  return error == nullptr ? di_structured_bytes{} : view(error->error.keyword);
}
void di_structured_error_free(di_structured_error* error) {
  delete error;
}

di_structured_vocabulary* di_structured_vocabulary_load(const char* path, di_structured_error** error) {
  return made<di_structured_vocabulary>(error, [&]() -> MadeVocabulary {
    std::string file = path == nullptr ? "" : path;
    struct stat status = {};
    if (stat(file.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) file += "/tokenizer.json";
    std::ifstream in(file, std::ios::binary);
    if (!in) return structured::refuse("invalid_argument", "tokenizer " + file + ": cannot be read");
    const std::string json{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    auto out = vocabulary_of(json);
    if (!out) out.error().message = "tokenizer " + file + ": " + out.error().message;
    return out;
  });
}

di_structured_vocabulary* di_structured_vocabulary_from_json(const char* json, size_t size,
                                                             di_structured_error** error) {
  return made<di_structured_vocabulary>(error, [&] { return vocabulary_of(text_of(json, size)); });
}

di_structured_vocabulary* di_structured_vocabulary_new(const di_structured_token* tokens, size_t count,
                                                       const di_structured_specials* specials,
                                                       di_structured_error** error) {
  return made<di_structured_vocabulary>(error, [&]() -> MadeVocabulary {
    std::vector<structured::Vocabulary::Token> rows;
    for (size_t i = 0; i < count; ++i) {
      rows.push_back({std::string(text_of(tokens[i].bytes.data, tokens[i].bytes.size)), tokens[i].special != 0});
    }
    if (specials == nullptr) return new di_structured_vocabulary{structured::Vocabulary::create(std::move(rows))};
    for (const int32_t id : {specials->eos, specials->think_begin, specials->think_end, specials->dsml}) {
      if (id < -1 || (id >= 0 && static_cast<size_t>(id) >= count))
        return structured::refuse("invalid_argument", "special token " + std::to_string(id) + " is out of range");
    }
    return new di_structured_vocabulary{structured::Vocabulary::create(
        std::move(rows), {specials->eos, specials->think_begin, specials->think_end, specials->dsml})};
  });
}

void di_structured_vocabulary_free(di_structured_vocabulary* vocabulary) {
  delete vocabulary;
}
int32_t di_structured_vocabulary_size(const di_structured_vocabulary* vocabulary) {
  return vocabulary->vocabulary->size();
}
size_t di_structured_mask_words(const di_structured_vocabulary* vocabulary) {
  return vocabulary->vocabulary->mask_words();
}
di_structured_bytes di_structured_token_bytes(const di_structured_vocabulary* vocabulary, int32_t id) {
  if (id < 0 || id >= vocabulary->vocabulary->size()) return {};
  return view(vocabulary->vocabulary->bytes(id));
}
int di_structured_token_is_special(const di_structured_vocabulary* vocabulary, int32_t id) {
  return id >= 0 && id < vocabulary->vocabulary->size() && vocabulary->vocabulary->is_special(id) ? 1 : 0;
}
int32_t di_structured_special_id(const di_structured_vocabulary* vocabulary, const char* spelling, size_t size) {
  return quiet(-1, [&] { return vocabulary->vocabulary->special(text_of(spelling, size)); });
}
di_structured_specials di_structured_vocabulary_specials(const di_structured_vocabulary* vocabulary) {
  const structured::SpecialTokens& s = vocabulary->vocabulary->specials();
  return {s.eos, s.think_begin, s.think_end, s.dsml};
}
size_t di_structured_encode_greedy(const di_structured_vocabulary* vocabulary, const char* text, size_t size,
                                   int with_special, int32_t* ids, size_t capacity) {
  return quiet(size_t{0}, [&] {
    const auto found = vocabulary->vocabulary->encode_greedy(text_of(text, size), with_special != 0);
    std::copy_n(found.begin(), std::min(found.size(), capacity), ids);
    return found.size();
  });
}

di_structured_constraint* di_structured_compile(const di_structured_vocabulary* vocabulary, const char* kind,
                                                const char* payload, size_t payload_size, const char* options,
                                                size_t options_size, di_structured_error** error) {
  return made<di_structured_constraint>(error, [&]() -> Expected<di_structured_constraint*> {
    structured::ConstraintSpec spec;
    structured::Limits limits;
    const auto known = structured::kind_of(kind == nullptr ? "" : kind);
    if (!known) return argument(known.error());
    spec.kind = *known;
    spec.payload = text_of(payload, payload_size);
    const auto read = structured::read_spec_options(text_of(options, options_size), spec, limits);
    if (!read) return argument(read.error());
    auto compiled = structured::compile(vocabulary->vocabulary, spec, limits);
    if (!compiled) return std::unexpected(compiled.error());
    return new di_structured_constraint{std::move(*compiled)};
  });
}

void di_structured_constraint_free(di_structured_constraint* constraint) {
  delete constraint;
}
size_t di_structured_warning_count(const di_structured_constraint* constraint) {
  return constraint->compiled->warnings().size();
}
di_structured_bytes di_structured_warning(const di_structured_constraint* constraint, size_t index) {
  const auto& warnings = constraint->compiled->warnings();
  return index < warnings.size() ? view(warnings[index]) : di_structured_bytes{};
}
int64_t di_structured_constraint_memory(const di_structured_constraint* constraint) {
  return quiet(int64_t{0}, [&] { return constraint->compiled->memory_bytes(); });
}

di_structured_matcher* di_structured_matcher_new(const di_structured_constraint* constraint, const int32_t* stop_tokens,
                                                 size_t count) {
  return quiet(static_cast<di_structured_matcher*>(nullptr), [&] {
    const auto stops = ids_of(stop_tokens, count);
    return new di_structured_matcher{structured::Matcher(constraint->compiled, {stops.begin(), stops.end()}), {}};
  });
}
di_structured_matcher* di_structured_matcher_clone(const di_structured_matcher* matcher) {
  return quiet(static_cast<di_structured_matcher*>(nullptr),
               [&] { return new di_structured_matcher{matcher->matcher.clone(), {}}; });
}
void di_structured_matcher_free(di_structured_matcher* matcher) {
  delete matcher;
}
int di_structured_needs_mask(const di_structured_matcher* matcher) {
  return quiet(1, [&] { return matcher->matcher.needs_mask() ? 1 : 0; });
}
int di_structured_fill_mask(di_structured_matcher* matcher, uint32_t* row, size_t words) {
  return quiet(0, [&] {
    if (words < matcher->matcher.mask_words()) return 0;
    return matcher->matcher.fill_mask({row, words}) ? 1 : 0;
  });
}
int di_structured_allowed(const di_structured_matcher* matcher, int32_t id) {
  return quiet(0, [&] { return matcher->matcher.allowed(id) ? 1 : 0; });
}
size_t di_structured_accept(di_structured_matcher* matcher, const int32_t* ids, size_t count) {
  return quiet(size_t{0}, [&] { return matcher->matcher.accept(ids_of(ids, count)); });
}
int di_structured_accept_bytes(di_structured_matcher* matcher, const char* text, size_t size) {
  return quiet(0, [&] { return matcher->matcher.accept_bytes(text_of(text, size)) ? 1 : 0; });
}
size_t di_structured_validate(const di_structured_matcher* matcher, const int32_t* ids, size_t count) {
  return quiet(size_t{0}, [&] { return matcher->matcher.validate(ids_of(ids, count)); });
}
size_t di_structured_fill_masks_along(di_structured_matcher* matcher, const int32_t* ids, size_t count, uint32_t* rows,
                                      size_t words) {
  return quiet(size_t{0}, [&] {
    const auto draft = ids_of(ids, count);
    return matcher->matcher.fill_masks_along(draft, {rows, (draft.size() + 1) * words});
  });
}
int di_structured_rollback(di_structured_matcher* matcher, size_t n) {
  return quiet(0, [&] { return matcher->matcher.rollback(n) ? 1 : 0; });
}
void di_structured_reset(di_structured_matcher* matcher) {
  matcher->matcher.reset();
}
size_t di_structured_token_count(const di_structured_matcher* matcher) {
  return matcher->matcher.tokens();
}
int di_structured_accepting(const di_structured_matcher* matcher) {
  return quiet(0, [&] { return matcher->matcher.accepting() ? 1 : 0; });
}
int di_structured_terminated(const di_structured_matcher* matcher) {
  return matcher->matcher.terminated() ? 1 : 0;
}
int di_structured_failed(const di_structured_matcher* matcher) {
  return matcher->matcher.failed() ? 1 : 0;
}
uint32_t di_structured_state(const di_structured_matcher* matcher) {
  return matcher->matcher.state();
}
di_structured_bytes di_structured_forced_text(di_structured_matcher* matcher, size_t limit) {
  return quiet(di_structured_bytes{}, [&] {
    matcher->text = matcher->matcher.forced_text(limit);
    return view(matcher->text);
  });
}

}  // extern "C"
