#include "base/sha256.h"

#include <openssl/evp.h>

#include "base/result.h"

namespace di {

Sha256 sha256(std::string_view bytes) {
  Sha256 digest{};
  unsigned length = 0;
  const int ok = EVP_Digest(bytes.data(), bytes.size(), digest.data(), &length, EVP_sha256(), nullptr);
  DI_CHECK(ok == 1 && length == digest.size());
  return digest;
}

std::string to_hex(const Sha256& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const uint8_t byte : digest) {
    out.push_back(kDigits[byte >> 4]);
    out.push_back(kDigits[byte & 15]);
  }
  return out;
}

}  // namespace di
