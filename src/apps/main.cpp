#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "apps/program.h"

namespace {

/// A standard stream that the caller closed would become the number of the first file opened here, weights read as a
/// prompt, say. It reads as empty and swallows nothing: writing to it still fails.
void fill_closed_streams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) != -1) continue;
    const int opened = ::open("/dev/null", O_RDONLY);
    if (opened != -1 && opened != descriptor) ::close(opened);
  }
}

}  // namespace

int main(int argc, char** argv) {
  fill_closed_streams();
  return tidepool::run_program(std::vector<std::string>(argv + 1, argv + argc));
}
