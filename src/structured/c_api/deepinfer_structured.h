/* C interface of structured output: from a constraint (JSON Schema, regex, grammar, choice, structural tags, tool
 * calls) to bit masks over a vocabulary (structured-output.md).
 *
 *   vocabulary (once per model)  ->  constraint (compiled, shared)  ->  matcher (one per sequence)
 *
 * Conventions
 * - Handles are opaque. What a function returns by pointer belongs to the caller, who frees it with the function of
 *   that type; freeing NULL does nothing. A constraint keeps its vocabulary alive, a matcher its constraint.
 * - Text is UTF-8 with a length; it need not end in NUL. A di_structured_bytes that comes out points into the handle it
 *   was asked of and is valid until that handle is freed or, for matchers, used again.
 * - A function that can fail takes `error`, which may be NULL. On failure it returns NULL and stores a new error handle
 *   there; on success it stores NULL. No C++ exception leaves this interface; running out of memory is an error of code
 *   "internal" or, where a function has no `error`, its value for failure.
 * - Vocabularies and constraints may be used by many threads at once; a matcher belongs to one thread at a time.
 * - Masks are 32-bit words: bit i & 31 of word i >> 5 says whether token i is allowed.
 * - Additions keep di_structured_abi, everything else raises it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { di_structured_abi = 1 };

#define di_structured_export __attribute__((visibility("default")))

typedef struct di_structured_error di_structured_error;
typedef struct di_structured_vocabulary di_structured_vocabulary;
typedef struct di_structured_constraint di_structured_constraint;
typedef struct di_structured_matcher di_structured_matcher;

typedef struct {
  const char* data;
  size_t size;
} di_structured_bytes;

/* Version of this interface that the library was built with; compare it with di_structured_abi. */
di_structured_export int di_structured_abi_version(void);

/* --- Errors --- */
/* "unsupported_schema_feature", "invalid_regex", ... of structured-output.md 8.1; "invalid_argument" for a wrong option
 * or kind, "invalid_vocabulary", "internal". */
di_structured_export di_structured_bytes di_structured_error_code(const di_structured_error* error);
/* One line with code, place, keyword and reason. */
di_structured_export di_structured_bytes di_structured_error_message(const di_structured_error* error);
/* JSON pointer into the schema; empty at its root and for other kinds. */
di_structured_export di_structured_bytes di_structured_error_pointer(const di_structured_error* error);
/* The schema keyword concerned, or empty. */
di_structured_export di_structured_bytes di_structured_error_keyword(const di_structured_error* error);
di_structured_export void di_structured_error_free(di_structured_error* error);

/* --- Vocabulary --- */
/* `path`: a tokenizer.json of the byte-level kind, or its folder. */
di_structured_export di_structured_vocabulary* di_structured_vocabulary_load(const char* path,
                                                                             di_structured_error** error);
di_structured_export di_structured_vocabulary* di_structured_vocabulary_from_json(const char* json, size_t size,
                                                                                  di_structured_error** error);
typedef struct {
  di_structured_bytes bytes; /* its text; empty: an unused row, never allowed */
  int special;               /* 1: a control token, never matches by its spelling */
} di_structured_token;
typedef struct { /* control tokens by role; -1 where there is none */
  int32_t eos;
  int32_t think_begin;
  int32_t think_end;
  int32_t dsml;
} di_structured_specials;
/* Row i is token i; copied. `specials` NULL: DeepSeek's names are looked up among the special tokens. */
di_structured_export di_structured_vocabulary* di_structured_vocabulary_new(const di_structured_token* tokens,
                                                                            size_t count,
                                                                            const di_structured_specials* specials,
                                                                            di_structured_error** error);
di_structured_export void di_structured_vocabulary_free(di_structured_vocabulary* vocabulary);
di_structured_export int32_t di_structured_vocabulary_size(const di_structured_vocabulary* vocabulary);
/* Words of a mask: one bit a token, rounded up. */
di_structured_export size_t di_structured_mask_words(const di_structured_vocabulary* vocabulary);
/* Empty for an id out of range. */
di_structured_export di_structured_bytes di_structured_token_bytes(const di_structured_vocabulary* vocabulary,
                                                                   int32_t id);
di_structured_export int di_structured_token_is_special(const di_structured_vocabulary* vocabulary, int32_t id);
/* The special token spelt so, or -1. */
di_structured_export int32_t di_structured_special_id(const di_structured_vocabulary* vocabulary, const char* spelling,
                                                      size_t size);
di_structured_export di_structured_specials
di_structured_vocabulary_specials(const di_structured_vocabulary* vocabulary);
/* Tokens of a text by greedy longest match, for tests and tools: not the tokenizer's segmentation. Stores at most
 * `capacity` ids and returns their whole number; 0 for a text that the tokens cannot spell. `with_special`: special
 * tokens are recognised by their spelling. */
di_structured_export size_t di_structured_encode_greedy(const di_structured_vocabulary* vocabulary, const char* text,
                                                        size_t size, int with_special, int32_t* ids, size_t capacity);

/* --- Constraints --- */
/* `kind`: json_object, json_schema, regex, choice, ebnf, lark, grammar (EBNF or Lark), structural_tag, tool_calls,
 * none. `payload`: the schema, pattern, JSON list of choices, grammar, tag or JSON list of tools; unused for
 * json_object and none. `options`: NULL, or a JSON object with the members that docs/structured-output.md lists. Runs
 * on the calling thread within the limits. */
di_structured_export di_structured_constraint* di_structured_compile(const di_structured_vocabulary* vocabulary,
                                                                     const char* kind, const char* payload,
                                                                     size_t payload_size, const char* options,
                                                                     size_t options_size, di_structured_error** error);
di_structured_export void di_structured_constraint_free(di_structured_constraint* constraint);
/* What lenient mode and unknown formats left unenforced. */
di_structured_export size_t di_structured_warning_count(const di_structured_constraint* constraint);
/* Empty for an index out of range. */
di_structured_export di_structured_bytes di_structured_warning(const di_structured_constraint* constraint,
                                                               size_t index);
/* Bytes held now: grammar, lazily made states, masks. */
di_structured_export int64_t di_structured_constraint_memory(const di_structured_constraint* constraint);

/* --- Matchers --- */
/* `stop_tokens`: allowed where the text may end, beside the vocabulary's end-of-sequence token. NULL: no memory. */
di_structured_export di_structured_matcher* di_structured_matcher_new(const di_structured_constraint* constraint,
                                                                      const int32_t* stop_tokens, size_t count);
/* A matcher in the same state, for another continuation. NULL: no memory. */
di_structured_export di_structured_matcher* di_structured_matcher_clone(const di_structured_matcher* matcher);
di_structured_export void di_structured_matcher_free(di_structured_matcher* matcher);
/* 0 when every ordinary token is allowed here: a sampler that bans control tokens by itself may skip the mask. */
di_structured_export int di_structured_needs_mask(const di_structured_matcher* matcher);
/* Fills `words` words, at least di_structured_mask_words(); bits past the vocabulary are 0. After termination all are
 * 0. Returns 0 when a limit was reached or `words` is too small: the sequence must end. */
di_structured_export int di_structured_fill_mask(di_structured_matcher* matcher, uint32_t* row, size_t words);
di_structured_export int di_structured_allowed(const di_structured_matcher* matcher, int32_t id);
/* Takes tokens until one is refused and returns how many were taken; a refused token changes nothing. */
di_structured_export size_t di_structured_accept(di_structured_matcher* matcher, const int32_t* ids, size_t count);
/* All of the bytes as ordinary text (1), or nothing (0). Counts as one token for rollback. */
di_structured_export int di_structured_accept_bytes(di_structured_matcher* matcher, const char* text, size_t size);
/* The longest acceptable prefix; the state stays. */
di_structured_export size_t di_structured_validate(const di_structured_matcher* matcher, const int32_t* ids,
                                                   size_t count);
/* Masks along a draft: row j, `words` words long, is the mask after ids[0..j); rows 0 to the longest acceptable prefix
 * are filled, the others are all ones. `rows` holds (count + 1) * words words. Returns the prefix; the state stays. */
di_structured_export size_t di_structured_fill_masks_along(di_structured_matcher* matcher, const int32_t* ids,
                                                           size_t count, uint32_t* rows, size_t words);
/* Takes back the last n accepted tokens (1); 0 when there are fewer. */
di_structured_export int di_structured_rollback(di_structured_matcher* matcher, size_t n);
di_structured_export void di_structured_reset(di_structured_matcher* matcher);
/* Accepted tokens. */
di_structured_export size_t di_structured_token_count(const di_structured_matcher* matcher);
/* The text may end here. */
di_structured_export int di_structured_accepting(const di_structured_matcher* matcher);
/* A stop token was accepted. */
di_structured_export int di_structured_terminated(const di_structured_matcher* matcher);
/* A limit was reached while masks were made. */
di_structured_export int di_structured_failed(const di_structured_matcher* matcher);
/* Equal numbers mean equal states within one constraint. */
di_structured_export uint32_t di_structured_state(const di_structured_matcher* matcher);
/* The longest text that every continuation shares, at most `limit` bytes. */
di_structured_export di_structured_bytes di_structured_forced_text(di_structured_matcher* matcher, size_t limit);

#ifdef __cplusplus
}
#endif
