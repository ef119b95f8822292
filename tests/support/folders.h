// Where the tests find what they read. The values are in one generated file (cmake/Rooms.cmake) and not in macros, so
// that objects of tests are the same in every checkout and the compiler cache finds them.
#pragma once

namespace di::test {

extern const char kData[];     // tests/data
extern const char kModels[];   // models
extern const char kVectors[];  // the reference vectors; may not exist (DI_VECTORS_DIR)

}  // namespace di::test
