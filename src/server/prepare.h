// From the body of a request to what the engine is asked: reading it, its limits, its prompt. Shared by the routes.
#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codec/codec.h"
#include "codec/image/resolve.h"
#include "server/app.h"
#include "server/chat_extras.h"
#include "server/errors.h"

namespace di::server {

ApiFailure from_api_error(const codec::ApiError& error);

// The body as JSON; a byte order mark is skipped. What is wrong with it, the codec words best.
std::expected<Json, ApiFailure> parse_body(codec::Api api, std::string_view body, const codec::CodecOptions& options);

// The id that a body names its request by (vLLM's `request_id`); a header's goes before it.
void take_request_id(Exchange& exchange, const Json& body);

// A body as the codec reads it: names of other vendors' models mapped, sizes checked, the tenant's own turns with tool
// calls given their tokens.
std::expected<codec::ConvertedRequest, ApiFailure> convert_body(App& app, const std::string& tenant, codec::Api api,
                                                                const Json& body, const codec::CodecOptions& options);

// The prompt's images, in its order, then `then`: at once where it has none, else on a thread of app.media(). The model
// must take images, and links must be allowed.
using Images = std::expected<std::vector<codec::ResolvedImage>, ApiFailure>;
void with_images(App& app, const std::string& tenant, std::vector<codec::ImageSource> sources,
                 const std::function<void(const Images&)>& then);

struct EncodedPrompt {
  std::vector<TokenId> ids;  // an image takes as many as it has rows
  std::vector<engine::MediaSpan> media;
};
std::expected<EncodedPrompt, ApiFailure> encode_rendered(const codec::RenderedPrompt& prompt,
                                                         const codec::Tokenizer& tokenizer,
                                                         const codec::CodecOptions& options,
                                                         std::span<const codec::ResolvedImage> images);

// Identity, deadlines, priority and cache namespace of a request.
std::expected<engine::GenerateRequest, ApiFailure> engine_request(App& app, Exchange& exchange, const Json& body);

// What is known of a request at its beginning.
RequestRecord start_record(App& app, Exchange& exchange, std::string_view route, std::string response_id);

TimelineRef start_timeline(App& app, Exchange& exchange, std::string_view route);

// Top-level members that no route of this API knows are counted, and refused with --strict-fields.
std::expected<void, ApiFailure> check_known_fields(App& app, codec::Api api, const Json& body);

engine::SamplingParams sampling_params(const codec::SamplingOptions& options, const ChatExtras& extras);

}  // namespace di::server
