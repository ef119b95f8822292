# Warnings are errors in our own code; third-party headers come in as SYSTEM.
add_library(di_warnings INTERFACE)
target_compile_options(di_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wnon-virtual-dtor -Wold-style-cast -Wcast-align -Woverloaded-virtual
  $<$<CXX_COMPILER_ID:GNU>:-Wduplicated-cond -Wlogical-op>
  # g++ 12 at -O3 sees overlapping copies in std::string's own operator+ (gcc bug 105651, fixed in 13).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
  # DI_TRY is a GNU statement expression (style.md, "Errors").
  $<$<CXX_COMPILER_ID:Clang>:-Wno-gnu-statement-expression -Wno-gnu-zero-variadic-macro-arguments>
  # Options of the other compiler in a room.cmake; algorithms of libstdc++ 12 that use what C++17 deprecated.
  $<$<CXX_COMPILER_ID:Clang>:-Wno-unknown-warning-option -Wno-deprecated-declarations>
  -Werror)
