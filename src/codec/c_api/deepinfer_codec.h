/* C interface of the token codec: API request -> prompt -> token ids, and token ids -> API events (recipe.md).
 *
 * Conventions
 * - Handles are opaque. What a function returns by pointer belongs to the caller, who frees it with the function of
 * that type; freeing NULL does nothing.
 * - Text is UTF-8 with a length; it need not end in NUL. A di_codec_bytes or di_codec_ids that comes out points into
 * the handle it was asked of and is valid until that handle is freed or, for outputs, used again.
 * - A function that can fail takes `error`, which may be NULL. On failure it returns NULL or DI_CODEC_FAILED and stores
 * a new error handle there; on success it stores NULL. No C++ exception leaves this interface; running out of memory is
 *   an error of kind DI_CODEC_ERROR_INTERNAL.
 * - Tokenizers, options, requests and prompts do not change once made and may be used from several threads at once; an
 *   output belongs to one thread at a time.
 * - Additions keep DI_CODEC_ABI_VERSION, everything else raises it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { di_codec_abi = 1 };

#define di_codec_export __attribute__((visibility("default")))

typedef struct di_codec_error di_codec_error;
typedef struct di_codec_tokenizer di_codec_tokenizer;
typedef struct di_codec_options di_codec_options;
typedef struct di_codec_request di_codec_request;
typedef struct di_codec_prompt di_codec_prompt;
typedef struct di_codec_result di_codec_result;
typedef struct di_codec_output di_codec_output;

typedef struct {
  const char* data;
  size_t size;
} di_codec_bytes;

typedef struct {
  const int32_t* data;
  size_t size;
} di_codec_ids;

typedef struct { /* half-open range of bytes */
  size_t begin;
  size_t end;
} di_codec_range;

typedef enum { DI_CODEC_OK = 0, DI_CODEC_FAILED = 1 } di_codec_status;
typedef enum { DI_CODEC_CHAT = 0, DI_CODEC_RESPONSES = 1, DI_CODEC_MESSAGES = 2 } di_codec_api;
typedef enum { DI_CODEC_STOP = 0, DI_CODEC_LENGTH = 1, DI_CODEC_CONTENT_FILTER = 2 } di_codec_finish_reason;
typedef enum {
  DI_CODEC_ERROR_PARSE = 0,    /* the body is no JSON or not of the API's shape */
  DI_CODEC_ERROR_CONVERT = 1,  /* a well-formed request that is refused */
  DI_CODEC_ERROR_ARGUMENT = 2, /* a wrong argument of the caller: a file that is none, an unknown option */
  DI_CODEC_ERROR_INTERNAL = 3
} di_codec_error_kind;

/* Version of this interface that the library was built with; compare it with di_codec_abi. */
di_codec_export int di_codec_abi_version(void);

/* --- Errors --- */
di_codec_export di_codec_error_kind di_codec_error_get_kind(const di_codec_error* error);
/* One line. */
di_codec_export di_codec_bytes di_codec_error_message(const di_codec_error* error);
/* HTTP status that an API answers with: 400 or 500. */
di_codec_export int di_codec_error_http_status(const di_codec_error* error);
/* Official response body of a refused request: {"error":{..}}; empty for kinds ARGUMENT and INTERNAL. */
di_codec_export di_codec_bytes di_codec_error_body(const di_codec_error* error);
/* Request field at fault, or empty. */
di_codec_export di_codec_bytes di_codec_error_param(const di_codec_error* error);
di_codec_export void di_codec_error_free(di_codec_error* error);

/* --- Results: text and ids that a function made --- */
di_codec_export di_codec_bytes di_codec_result_text(const di_codec_result* result);
di_codec_export di_codec_ids di_codec_result_ids(const di_codec_result* result);
di_codec_export void di_codec_result_free(di_codec_result* result);

/* --- Tokenizer --- */
/* `path`: a tokenizer.json or its folder. `renames_json`: NULL, or {"<id>": "<new spelling>"} for added tokens. */
di_codec_export di_codec_tokenizer* di_codec_tokenizer_load(const char* path, const char* renames_json,
                                                            di_codec_error** error);
di_codec_export di_codec_tokenizer* di_codec_tokenizer_from_json(const char* json, size_t size,
                                                                 const char* renames_json, di_codec_error** error);
di_codec_export void di_codec_tokenizer_free(di_codec_tokenizer* tokenizer);
/* One past the highest id. */
di_codec_export int32_t di_codec_tokenizer_vocab_size(const di_codec_tokenizer* tokenizer);
/* Bytes held by the tokenizer. */
di_codec_export size_t di_codec_tokenizer_memory(const di_codec_tokenizer* tokenizer);
/* Ids of ordinary text: a special spelling in it becomes ordinary ids. Adds no BOS. */
di_codec_export di_codec_result* di_codec_encode_plain(const di_codec_tokenizer* tokenizer, const char* text,
                                                       size_t size, di_codec_error** error);
/* Ids with special spellings recognised. */
di_codec_export di_codec_result* di_codec_encode_full(const di_codec_tokenizer* tokenizer, const char* text,
                                                      size_t size, di_codec_error** error);
di_codec_export di_codec_result* di_codec_decode(const di_codec_tokenizer* tokenizer, const int32_t* ids, size_t count,
                                                 int skip_special, di_codec_error** error);

/* --- Options and requests --- */
/* `json`: NULL for the defaults, or a map with the members that docs/codec.md lists. */
di_codec_export di_codec_options* di_codec_options_new(const char* json, size_t size, di_codec_error** error);
di_codec_export void di_codec_options_free(di_codec_options* options);

/* Reads and converts a request body. `options` may be NULL. */
di_codec_export di_codec_request* di_codec_convert(di_codec_api api, const char* body, size_t size,
                                                   const di_codec_options* options, di_codec_error** error);
di_codec_export void di_codec_request_free(di_codec_request* request);
/* Everything about the request as JSON: model, model_version ("v4" or "v41"), stream, conversation, inference_options,
 * parsing_options, namespace_tool_map, warnings. Made on first use. */
di_codec_export di_codec_result* di_codec_request_describe(const di_codec_request* request, di_codec_error** error);
/* 1 for V4.1, 0 for V4. */
di_codec_export int di_codec_request_is_v41(const di_codec_request* request);
/* Tokens that may be generated behind a prompt of `prompt_tokens` (images counted at their full size). */
di_codec_export di_codec_status di_codec_resolve_max_tokens(const di_codec_request* request, uint64_t prompt_tokens,
                                                            uint64_t context_limit, uint32_t* out,
                                                            di_codec_error** error);
/* The prompt's ids, with the special spellings of the request's options. One id per image. */
di_codec_export di_codec_result* di_codec_encode_request(const di_codec_request* request,
                                                         const di_codec_tokenizer* tokenizer, di_codec_error** error);

/* --- Rendered prompts --- */
di_codec_export di_codec_prompt* di_codec_render(const di_codec_request* request, di_codec_error** error);
di_codec_export void di_codec_prompt_free(di_codec_prompt* prompt);
di_codec_export di_codec_bytes di_codec_prompt_text(const di_codec_prompt* prompt);
/* Ranges of the text that hold explicit special tokens, ascending and disjoint. Returns their number. */
di_codec_export size_t di_codec_prompt_ranges(const di_codec_prompt* prompt, const di_codec_range** ranges);
/* JSON list of the images in the order of their placeholders. */
di_codec_export di_codec_bytes di_codec_prompt_images(const di_codec_prompt* prompt);

/* Tokens that an image of width x height pixels takes in a V4.1 prompt (recipe.md 2.8). */
di_codec_export di_codec_status di_codec_image_token_count(uint32_t width, uint32_t height, uint32_t* out,
                                                           di_codec_error** error);

/* --- Output --- */
typedef struct {
  int32_t id;
  float logprob;
} di_codec_top_logprob;

typedef struct { /* of one output token */
  float logprob;
  const di_codec_top_logprob* top;
  size_t top_count;
} di_codec_logprob;

typedef struct {
  di_codec_bytes name; /* SSE event name; empty for Chat Completions */
  di_codec_bytes data; /* JSON on one line */
} di_codec_event;

/* Turns one output into the events of the request's API. `tokenizer` may be NULL when only text is given; it is kept
 * alive by the output. `settings_json`: {"id": .., "model": .., "created": seconds, "signature": .., "tool_id_seed":
 * ..}, all optional. */
di_codec_export di_codec_output* di_codec_output_new(const di_codec_request* request,
                                                     const di_codec_tokenizer* tokenizer, const char* settings_json,
                                                     size_t size, di_codec_error** error);
di_codec_export void di_codec_output_free(di_codec_output* output);
/* Each of the next five replaces the output's list of events by the events it caused. */
/* Prompt usage, before the first output. `fingerprint` may be NULL. */
di_codec_export di_codec_status di_codec_output_ready(di_codec_output* output, uint32_t prompt_tokens,
                                                      uint32_t cache_hit_tokens, const char* fingerprint,
                                                      di_codec_error** error);
/* One step's ids, without the end-of-sequence id. `logprobs` is NULL or has one entry per id. */
di_codec_export di_codec_status di_codec_output_tokens(di_codec_output* output, const int32_t* ids, size_t count,
                                                       const di_codec_logprob* logprobs, size_t logprob_count,
                                                       di_codec_error** error);
/* Text that was decoded elsewhere. */
di_codec_export di_codec_status di_codec_output_text(di_codec_output* output, const char* text, size_t size,
                                                     uint32_t token_count, di_codec_error** error);
di_codec_export di_codec_status di_codec_output_finish(di_codec_output* output, di_codec_finish_reason reason,
                                                       di_codec_error** error);
/* The input ends; idempotent. */
di_codec_export di_codec_status di_codec_output_close(di_codec_output* output, di_codec_error** error);

di_codec_export size_t di_codec_output_event_count(const di_codec_output* output);
di_codec_export di_codec_event di_codec_output_event(const di_codec_output* output, size_t index);
/* 1 once nothing more is read: a stop sequence matched, the output was finished, or an error was returned. */
di_codec_export int di_codec_output_done(const di_codec_output* output);
/* The response that is not streamed; complete after the output was closed. */
di_codec_export di_codec_result* di_codec_output_body(const di_codec_output* output, di_codec_error** error);
/* Data line that ends a stream ("[DONE]"), or empty. */
di_codec_export di_codec_bytes di_codec_output_end_of_stream(const di_codec_output* output);

#ifdef __cplusplus
}
#endif
