/* Structured output through its C interface, as a C program sees it. Prints "N passed, N failed". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "structured/c_api/deepinfer_structured.h"

static int passed = 0;
static int failed = 0;

static void check(int holds, const char* what) {
  if (holds) {
    ++passed;
  } else {
    ++failed;
    printf("does not hold: %s\n", what);
  }
}

static int is(di_structured_bytes bytes, const char* text) {
  return bytes.size == strlen(text) && memcmp(bytes.data, text, bytes.size) == 0;
}

static int has(di_structured_bytes bytes, const char* text) {
  const size_t n = strlen(text);
  for (size_t at = 0; at + n <= bytes.size; ++at) {
    if (memcmp(bytes.data + at, text, n) == 0) return 1;
  }
  return 0;
}

static di_structured_constraint* compile(const di_structured_vocabulary* vocabulary, const char* kind,
                                         const char* payload, const char* options, di_structured_error** error) {
  return di_structured_compile(vocabulary, kind, payload, strlen(payload), options,
                               options == NULL ? 0 : strlen(options), error);
}

/* The texts that a vocabulary of three letters, "<e>" and nothing else can be bound to. */
static void own_vocabulary(void) {
  di_structured_error* error = NULL;
  const di_structured_token tokens[] = {{{"a", 1}, 0}, {{"b", 1}, 0}, {{"ab", 2}, 0}, {{NULL, 0}, 0}, {{"<e>", 3}, 1}};
  const di_structured_specials roles = {4, -1, -1, -1};
  const di_structured_specials beyond = {5, -1, -1, -1};
  check(di_structured_vocabulary_new(tokens, 5, &beyond, &error) == NULL, "a role beyond the rows is refused");
  check(has(di_structured_error_message(error), "5"), "the error names the id");
  di_structured_error_free(error);

  di_structured_vocabulary* vocabulary = di_structured_vocabulary_new(tokens, 5, &roles, &error);
  check(vocabulary != NULL && error == NULL, "a vocabulary is made of rows");
  check(di_structured_vocabulary_size(vocabulary) == 5, "with its size");
  check(di_structured_mask_words(vocabulary) == 1, "in one word");
  check(is(di_structured_token_bytes(vocabulary, 2), "ab"), "a row has its bytes");
  check(di_structured_token_bytes(vocabulary, 99).size == 0, "no row has none");
  check(di_structured_token_is_special(vocabulary, 4) == 1, "a control token is one");
  check(di_structured_token_is_special(vocabulary, -1) == 0, "no token is none");
  check(di_structured_special_id(vocabulary, "<e>", 3) == 4, "it is found by its spelling");
  check(di_structured_vocabulary_specials(vocabulary).eos == 4, "and by its role");
  int32_t ids[4] = {0};
  check(di_structured_encode_greedy(vocabulary, "aba", 3, 0, ids, 4) == 2 && ids[0] == 2 && ids[1] == 0, "aba is ab, a");
  check(di_structured_encode_greedy(vocabulary, "aba", 3, 0, ids, 1) == 2, "the count does not depend on the room");

  di_structured_constraint* constraint = compile(vocabulary, "regex", "ab*", NULL, &error);
  check(constraint != NULL, "a pattern compiles");
  di_structured_vocabulary_free(vocabulary);
  di_structured_matcher* matcher = di_structured_matcher_new(constraint, NULL, 0);
  di_structured_constraint_free(constraint);
  uint32_t row[1] = {UINT32_MAX};
  check(di_structured_fill_mask(matcher, row, 0) == 0, "a row too short is refused");
  check(di_structured_fill_mask(matcher, row, 1) == 1 && row[0] == 5, "a and ab may begin");
  const int32_t b = 1;
  check(di_structured_accept(matcher, &b, 1) == 0 && di_structured_token_count(matcher) == 0, "b may not");
  const int32_t text[] = {2, 1, 4};
  check(di_structured_validate(matcher, text, 3) == 3, "abb and the end are acceptable");
  check(di_structured_token_count(matcher) == 0, "asking changes nothing");
  uint32_t rows[4] = {0};
  check(di_structured_fill_masks_along(matcher, text, 3, rows, 1) == 3, "so are their masks");
  check(rows[0] == 5 && rows[1] == 18 && rows[2] == 18 && rows[3] == 0, "each of them right");
  check(di_structured_accept(matcher, text, 3) == 3 && di_structured_terminated(matcher) == 1, "they are taken");
  check(di_structured_rollback(matcher, 4) == 0, "four tokens are too many to take back");
  check(di_structured_rollback(matcher, 1) == 1 && di_structured_terminated(matcher) == 0, "one is not");
  check(di_structured_accepting(matcher) == 1, "the text may end there");
  di_structured_matcher_free(matcher);
}

static void errors(const di_structured_vocabulary* vocabulary) {
  di_structured_error* error = NULL;
  check(di_structured_vocabulary_load("/nonexistent", &error) == NULL, "no vocabulary of an absent file");
  check(has(di_structured_error_message(error), "/nonexistent"), "the error names the file");
  di_structured_error_free(error);
  check(di_structured_vocabulary_load("/nonexistent", NULL) == NULL, "the error parameter may be NULL");
  check(di_structured_vocabulary_from_json("{}", 2, &error) == NULL, "an object is no tokenizer");
  check(is(di_structured_error_code(error), "invalid_vocabulary"), "and has its code");
  di_structured_error_free(error);

  check(compile(vocabulary, "xml", "", NULL, &error) == NULL, "an unknown kind is refused");
  check(is(di_structured_error_code(error), "invalid_argument"), "as a wrong argument");
  check(has(di_structured_error_message(error), "json_schema"), "the error lists the kinds");
  di_structured_error_free(error);
  check(compile(vocabulary, "json_object", "", "{\"spaces\":1}", &error) == NULL, "an unknown option is refused");
  check(has(di_structured_error_message(error), "`spaces`"), "and named");
  di_structured_error_free(error);
  check(compile(vocabulary, "json_object", "", "{\"limits\":{\"max_items\":-1}}", &error) == NULL, "so is a bad limit");
  check(has(di_structured_error_message(error), "limits.max_items"), "by its path");
  di_structured_error_free(error);
  const char schema[] = "{\"properties\":{\"a\":{\"$ref\":\"http://example.com/b\"}}}";
  check(compile(vocabulary, "json_schema", schema, NULL, &error) == NULL, "what cannot be enforced is refused");
  check(is(di_structured_error_code(error), "unresolvable_ref"), "with its code");
  check(is(di_structured_error_pointer(error), "/properties/a"), "the place");
  check(is(di_structured_error_keyword(error), "$ref"), "and the keyword");
  di_structured_error_free(error);
  check(compile(vocabulary, "regex", "(a", NULL, &error) == NULL, "half a pattern is refused");
  check(is(di_structured_error_code(error), "invalid_regex"), "with its code");
  di_structured_error_free(error);
  check(compile(vocabulary, "regex", "aaaa", "{\"limits\":{\"max_regex_bytes\":3}}", &error) == NULL, "limits hold");
  check(is(di_structured_error_code(error), "constraint_too_large"), "with their code");
  di_structured_error_free(error);

  di_structured_error_free(NULL);
  di_structured_vocabulary_free(NULL);
  di_structured_constraint_free(NULL);
  di_structured_matcher_free(NULL);
}

static void matchers(const di_structured_vocabulary* vocabulary) {
  di_structured_error* error = NULL;
  const char schema[] =
      "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"format\":\"password\"}},\"required\":[\"a\"],"
      "\"additionalProperties\":false}";
  di_structured_constraint* constraint =
      compile(vocabulary, "json_schema", schema, "{\"whitespace\":\"compact\"}", &error);
  check(constraint != NULL, "a schema compiles");
  check(di_structured_warning_count(constraint) == 1, "with one warning");
  check(has(di_structured_warning(constraint, 0), "password"), "that names the format");
  check(di_structured_warning(constraint, 1).size == 0, "there is no second");
  check(di_structured_constraint_memory(constraint) > 0, "it takes memory");

  di_structured_matcher* matcher = di_structured_matcher_new(constraint, NULL, 0);
  check(di_structured_needs_mask(matcher) == 1, "its text is not free");
  check(is(di_structured_forced_text(matcher, 100), "{\"a\":\""), "the beginning is forced");
  check(is(di_structured_forced_text(matcher, 2), "{\""), "as far as asked");
  check(di_structured_accept_bytes(matcher, "{\"a\":\"x", 7) == 1, "bytes are taken");
  check(di_structured_accept_bytes(matcher, "}}", 3) == 0, "others are not");
  check(di_structured_token_count(matcher) == 1, "as one token");
  di_structured_matcher* other = di_structured_matcher_clone(matcher);
  check(di_structured_state(other) == di_structured_state(matcher), "a clone is in the same state");
  check(di_structured_accept_bytes(other, "\"}", 2) == 1 && di_structured_accepting(other) == 1, "it goes on alone");
  check(di_structured_accepting(matcher) == 0, "the first stays where it was");
  const int32_t eos = di_structured_vocabulary_specials(vocabulary).eos;
  check(di_structured_allowed(matcher, eos) == 0 && di_structured_allowed(other, eos) == 1, "the end is allowed there");
  check(di_structured_allowed(other, 1 << 30) == 0, "an id beyond the vocabulary is not");
  const size_t words = di_structured_mask_words(vocabulary);
  uint32_t* row = malloc((words + 2) * sizeof(uint32_t));
  if (row != NULL) {
    memset(row, 0xff, (words + 2) * sizeof(uint32_t));
    check(di_structured_fill_mask(other, row, words + 2) == 1, "a longer row is filled");
    check(row[words] == 0 && row[words + 1] == 0, "with zeros behind the vocabulary");
    check(((row[eos >> 5] >> (eos & 31)) & 1U) == 1, "the end has its bit");
    free(row);
  }
  di_structured_reset(other);
  check(di_structured_token_count(other) == 0 && di_structured_failed(other) == 0, "it begins anew");
  di_structured_matcher_free(other);
  di_structured_matcher_free(matcher);
  di_structured_constraint_free(constraint);

  constraint = compile(vocabulary, "none", "", "{\"reasoning\":true}", &error);
  matcher = di_structured_matcher_new(constraint, NULL, 0);
  check(matcher != NULL && di_structured_needs_mask(matcher) == 0, "thinking is free");
  di_structured_matcher_free(matcher);
  di_structured_constraint_free(constraint);
}

int main(int argc, char** argv) {
  di_structured_error* error = NULL;
  check(di_structured_abi_version() == di_structured_abi, "header and library are of one version");
  own_vocabulary();
  di_structured_vocabulary* vocabulary = di_structured_vocabulary_load(argc > 1 ? argv[1] : "models/tiny", &error);
  check(vocabulary != NULL, "the bundled tokenizer is read");
  if (vocabulary != NULL) {
    errors(vocabulary);
    matchers(vocabulary);
  }
  di_structured_vocabulary_free(vocabulary);
  printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
