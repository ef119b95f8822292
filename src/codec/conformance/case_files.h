// Files of a case folder and the two tokenizers the cases need. Internal to conformance/.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "codec/codec.h"
#include "codec/conformance/conformance.h"

namespace di::codec::conformance {

// Calls use(json, "file:line") for every line of every *.jsonl file in the folder, and use_file(json, file) for every
// other
// *.json file but tokenizers. A line or file that cannot be read is a failed case.
void for_each_case(const std::string& dir, ConformanceResult& result,
                   const std::function<void(const Json&, const std::string&)>& use_line,
                   const std::function<void(const Json&, const std::string&)>& use_file);

struct Tokenizers {
  TokenizerRef v4;
  TokenizerRef v41;  // with the renames of tokenizer_v41_patch.json
};
Result<Tokenizers> load_tokenizers(const std::string& dir, const std::string& vectors_dir, bool need_v41);

Result<std::vector<TokenId>> ids_of(const Json& list);
Result<std::vector<TokenId>> ids_at(const Json& object, std::string_view key);
// "expected …, found …", long texts cut around the first difference.
std::string difference(std::string_view what, std::string_view expected, std::string_view found);
std::string id_of(const Json& c, const std::string& where);

// Members by name; the error names what is missing.
Result<std::string_view> text_at(const Json& object, std::string_view key);
Result<const Json*> member_at(const Json& object, std::string_view key);

Result<Api> api_of(const Json& c);

std::string check_request(const Json& c, const Tokenizers& tokenizers);
std::string check_rejection(const Json& c, ConformanceResult& result);
std::string check_stream(const Json& c, const Tokenizers& tokenizers);

}  // namespace di::codec::conformance
