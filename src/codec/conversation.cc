#include "codec/conversation.h"

namespace di::codec {

void RichText::append(const RichText& more) {
  const size_t offset = text.size();
  text += more.text;
  for (const auto& [begin, end] : more.images) images.emplace_back(begin + offset, end + offset);
}

void RichText::append_image(std::string_view spelling) {
  const size_t begin = text.size();
  text += spelling;
  images.emplace_back(begin, text.size());
}

}  // namespace di::codec
