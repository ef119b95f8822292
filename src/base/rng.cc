#include "base/rng.h"

#include <openssl/rand.h>

#include "base/result.h"

namespace di {

uint64_t random_u64() {
  unsigned char bytes[8];
  DI_CHECK(RAND_bytes(bytes, sizeof bytes) == 1, "the system gave no random bytes");
  uint64_t value = 0;
  for (const unsigned char byte : bytes) value = value << 8 | byte;
  return value;
}

}  // namespace di
