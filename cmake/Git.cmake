# Run by cmake -P at every build: writes OUT, a C++ file with the commit of FOLDER (server/build_info.h), when it has changed.
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND git -C ${FOLDER} rev-parse --short=12 HEAD OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
file(CONFIGURE OUTPUT ${OUT} CONTENT "// Made by cmake/Git.cmake.
#include \"server/build_info.h\"

namespace di::server {

std::string_view git_commit() {
  return \"@commit@\";
}

}  // namespace di::server
" @ONLY)
