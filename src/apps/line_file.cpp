#include "apps/line_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/log.h"

namespace tidepool {

LineFile::LineFile(const std::string& path) : path_(path) {
  if (path == "-") {
    path_ = "standard error";
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
  // A line that was cut short must not swallow the next one.
  if (is_cut_ && try_write("\n")) is_cut_ = false;
  if (!is_cut_ && try_write(line)) {
    if (lost_ > 0) log_warning("{} takes lines again; {} were lost", path_, lost_);
    lost_ = 0;
  } else if (lost_++ == 0) {
    log_warning("{} takes no line: {}; lines are lost until it does", path_, std::strerror(errno));
  }
}

bool LineFile::try_write(std::string_view line) {
  while (!line.empty()) {
    const ssize_t written = ::write(descriptor_, line.data(), line.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    line.remove_prefix(static_cast<size_t>(written));
    is_cut_ = !line.empty();
  }
  return true;
}

}  // namespace tidepool
