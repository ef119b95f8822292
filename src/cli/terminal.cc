#include "cli/terminal.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>

namespace di::cli {

Terminal Terminal::detect() {
  Terminal terminal;
  terminal.interactive = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  if (isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr) {
    terminal.dim = "\x1b[2m";
    terminal.plain = "\x1b[0m";
  }
  return terminal;
}

std::atomic<bool>& interrupt_flag() {
  static std::atomic<bool> flag{false};  // a signal handler reaches nothing else
  return flag;
}

void catch_interrupts() {
  struct sigaction action{};
  action.sa_handler = [](int) {
    // A second Ctrl-C, or one while nothing runs, ends the program.
    if (interrupt_flag().exchange(true)) _exit(130);
  };
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
}

}  // namespace di::cli
