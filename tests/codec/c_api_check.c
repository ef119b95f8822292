/* The codec through its C interface, as a C program sees it. Prints "N passed, N failed". */
#include <stdio.h>
#include <string.h>

#include "codec/c_api/deepinfer_codec.h"

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

static int is(di_codec_bytes bytes, const char* text) {
  return bytes.size == strlen(text) && memcmp(bytes.data, text, bytes.size) == 0;
}

static int has(di_codec_bytes bytes, const char* text) {
  const size_t n = strlen(text);
  for (size_t at = 0; at + n <= bytes.size; ++at) {
    if (memcmp(bytes.data + at, text, n) == 0) return 1;
  }
  return 0;
}

static const char kBody[] =
    "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":\"What is an owl?\"}],"
    "\"thinking\":{\"type\":\"disabled\"},\"stream\":true}";

static void errors(void) {
  di_codec_error* error = NULL;
  check(di_codec_tokenizer_load("/nonexistent", NULL, &error) == NULL, "no tokenizer of an absent file");
  check(di_codec_error_get_kind(error) == DI_CODEC_ERROR_ARGUMENT, "an absent file is the caller's error");
  check(has(di_codec_error_message(error), "/nonexistent"), "the error names the file");
  di_codec_error_free(error);
  check(di_codec_tokenizer_load("/nonexistent", NULL, NULL) == NULL, "the error parameter may be NULL");

  const char options[] = "{\"policy\":\"lax\"}";
  check(di_codec_options_new(options, strlen(options), &error) == NULL, "unknown policies are refused");
  check(has(di_codec_error_message(error), "`policy`"), "the error names the option");
  di_codec_error_free(error);

  check(di_codec_convert(DI_CODEC_CHAT, "{", 1, NULL, &error) == NULL, "half a body is refused");
  check(di_codec_error_get_kind(error) == DI_CODEC_ERROR_PARSE, "half a body cannot be parsed");
  di_codec_error_free(error);
  const char empty[] = "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[]}";
  check(di_codec_convert(DI_CODEC_CHAT, empty, strlen(empty), NULL, &error) == NULL, "no messages, no request");
  check(di_codec_error_get_kind(error) == DI_CODEC_ERROR_CONVERT, "that is a refusal");
  check(di_codec_error_http_status(error) == 400, "of status 400");
  check(is(di_codec_error_message(error), "Empty input messages"), "in the official words");
  check(has(di_codec_error_body(error), "\"type\":\"invalid_request_error\""), "with the official body");
  di_codec_error_free(error);

  uint32_t tokens = 0;
  check(di_codec_image_token_count(978, 479, &tokens, &error) == DI_CODEC_OK && tokens == 302, "image tokens");
  check(error == NULL, "success stores no error");
  check(di_codec_image_token_count(0, 5, &tokens, &error) == DI_CODEC_FAILED, "an empty image has none");
  di_codec_error_free(error);

  di_codec_error_free(NULL);
  di_codec_tokenizer_free(NULL);
  di_codec_options_free(NULL);
  di_codec_request_free(NULL);
  di_codec_prompt_free(NULL);
  di_codec_result_free(NULL);
  di_codec_output_free(NULL);
}

static void prompts(const di_codec_request* request, const di_codec_tokenizer* tokenizer) {
  di_codec_error* error = NULL;
  di_codec_result* described = di_codec_request_describe(request, &error);
  check(has(di_codec_result_text(described), "\"model_version\":\"v41\""), "the description names the version");
  di_codec_result_free(described);
  check(di_codec_request_is_v41(request) == 1, "the request is for V4.1");

  di_codec_prompt* prompt = di_codec_render(request, &error);
  const di_codec_range* ranges = NULL;
  const size_t n = di_codec_prompt_ranges(prompt, &ranges);
  check(n > 3 && ranges[0].begin == 0, "the prompt begins with a special token");
  for (size_t i = 1; i < n; ++i) check(ranges[i].begin >= ranges[i - 1].end, "ranges ascend");
  check(has(di_codec_prompt_text(prompt), "What is an owl?"), "the prompt holds the question");
  check(is(di_codec_prompt_images(prompt), "[]"), "and no images");
  di_codec_prompt_free(prompt);

  di_codec_result* ids = di_codec_encode_request(request, tokenizer, &error);
  check(ids != NULL && di_codec_result_ids(ids).size > n, "the prompt has ids");
  if (ids != NULL) {
    const di_codec_ids list = di_codec_result_ids(ids);
    di_codec_result* text = di_codec_decode(tokenizer, list.data, list.size, 0, &error);
    check(has(di_codec_result_text(text), "What is an owl?"), "which decode to it");
    di_codec_result_free(text);
  }
  di_codec_result_free(ids);
  uint32_t limit = 0;
  check(di_codec_resolve_max_tokens(request, 10, 100, &limit, &error) == DI_CODEC_OK && limit == 90, "room for 90");
  check(di_codec_resolve_max_tokens(request, 200, 100, &limit, &error) == DI_CODEC_FAILED, "none behind 200 of 100");
  check(has(di_codec_error_message(error), "maximum context length is 100"), "and the message says so");
  di_codec_error_free(error);
}

static void answers(const di_codec_request* request, const di_codec_tokenizer* tokenizer) {
  di_codec_error* error = NULL;
  const char settings[] = "{\"id\":\"chatcmpl-1\",\"model\":\"m\",\"created\":7}";
  di_codec_output* output = di_codec_output_new(request, tokenizer, settings, strlen(settings), &error);
  check(output != NULL, "an output is made");
  if (output == NULL) return;
  check(di_codec_output_ready(output, 10, 4, "fp", &error) == DI_CODEC_OK, "it takes the usage");
  check(di_codec_output_event_count(output) == 1, "and starts");
  check(has(di_codec_output_event(output, 0).data, "\"system_fingerprint\":\"fp\""), "with the fingerprint");
  const char answer[] = "An owl is a bird.";
  di_codec_result* ids = di_codec_encode_plain(tokenizer, answer, strlen(answer), &error);
  const di_codec_ids list = di_codec_result_ids(ids);
  for (size_t i = 0; i < list.size; ++i) {
    check(di_codec_output_tokens(output, &list.data[i], 1, NULL, 0, &error) == DI_CODEC_OK, "it takes an id");
  }
  const di_codec_logprob logprobs[2] = {{-0.5F, NULL, 0}, {-0.5F, NULL, 0}};
  check(di_codec_output_done(output) == 0, "it goes on");
  check(di_codec_output_finish(output, DI_CODEC_STOP, &error) == DI_CODEC_OK, "it ends");
  check(di_codec_output_event_count(output) == 1, "with one event");
  check(di_codec_output_done(output) == 1, "and is done");
  check(di_codec_output_close(output, &error) == DI_CODEC_OK, "closing once more changes nothing");
  di_codec_result* body = di_codec_output_body(output, &error);
  check(has(di_codec_result_text(body), "\"content\":\"An owl is a bird.\""), "the body holds the answer");
  di_codec_result_free(body);
  check(is(di_codec_output_end_of_stream(output), "[DONE]"), "a stream ends with [DONE]");
  di_codec_output_free(output);

  output = di_codec_output_new(request, NULL, NULL, 0, &error);
  check(di_codec_output_text(output, "text", 4, 1, &error) == DI_CODEC_OK, "text needs no tokenizer");
  check(di_codec_output_tokens(output, list.data, 1, NULL, 0, &error) == DI_CODEC_FAILED, "ids do");
  di_codec_error_free(error);
  di_codec_output_free(output);
  output = di_codec_output_new(request, tokenizer, NULL, 0, &error);
  check(di_codec_output_tokens(output, list.data, 1, logprobs, 2, &error) == DI_CODEC_FAILED, "one probability an id");
  di_codec_error_free(error);
  di_codec_output_free(output);
  di_codec_result_free(ids);
}

int main(int argc, char** argv) {
  di_codec_error* error = NULL;
  check(di_codec_abi_version() == di_codec_abi, "header and library are of one version");
  errors();
  di_codec_tokenizer* tokenizer = di_codec_tokenizer_load(argc > 1 ? argv[1] : "models/tiny", NULL, &error);
  check(tokenizer != NULL, "the bundled tokenizer is read");
  di_codec_request* request = di_codec_convert(DI_CODEC_CHAT, kBody, strlen(kBody), NULL, &error);
  check(request != NULL, "the request is accepted");
  if (tokenizer != NULL && request != NULL) {
    check(di_codec_tokenizer_vocab_size(tokenizer) > 256, "the vocabulary has its size");
    check(di_codec_tokenizer_memory(tokenizer) > 1000, "and takes memory");
    prompts(request, tokenizer);
    answers(request, tokenizer);
  }
  di_codec_request_free(request);
  di_codec_tokenizer_free(tokenizer);
  printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
