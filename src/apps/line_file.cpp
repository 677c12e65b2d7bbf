#include "apps/line_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace tidepool {

LineFile::LineFile(const std::string& path) {
  if (path == "-") {
    descriptor_ = STDERR_FILENO;
    return;
  }
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
  if (descriptor_ < 0) {
    throw Error(ErrorCode::kIo, fmt::format("cannot open {} to append to it: {}", path, std::strerror(errno)));
  }
  is_owned_ = true;
}

LineFile::~LineFile() {
  if (is_owned_) ::close(descriptor_);
}

void LineFile::write(std::string_view line) {
  const std::lock_guard lock(mutex_);
  while (!line.empty()) {
    const ssize_t written = ::write(descriptor_, line.data(), line.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    line.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace tidepool
