#include "base/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <string>
#include <system_error>
#include <thread>

#include "base/error.h"

namespace tidepool {
namespace {

std::string reason(int error) {
  return std::generic_category().message(error);
}

/// The process id that the owner wrote into the file, or nothing.
std::string owner_of(int descriptor) {
  std::array<char, 32> text{};
  const ssize_t count = ::pread(descriptor, text.data(), text.size(), 0);
  std::string id;
  for (ssize_t i = 0; i < count && text[static_cast<size_t>(i)] >= '0' && text[static_cast<size_t>(i)] <= '9'; ++i)
    id += text[static_cast<size_t>(i)];
  return id.empty() ? "another process" : "process " + id;
}

/// Somebody who only looks whether there is an owner holds the lock for a moment.
bool try_lock(int descriptor) {
  constexpr int kTries = 5;
  for (int i = 0; i < kTries; ++i) {
    if (i > 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return true;
    if (errno != EWOULDBLOCK) return false;
  }
  return false;
}

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder, const FolderPurpose& purpose) {
  const std::filesystem::path path = folder / "LOCK";
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor_ < 0) {
    throw Error(ErrorCode::kIo,
                fmt::format("{}: cannot be opened: {}; {}", path.string(), reason(errno), purpose.remedy));
  }
  if (!try_lock(descriptor_)) {
    const int error = errno;
    const std::string owner = owner_of(descriptor_);
    ::close(descriptor_);
    if (error != EWOULDBLOCK) {
      throw Error(ErrorCode::kIo, fmt::format("{}: cannot be locked: {}", path.string(), reason(error)));
    }
    throw Error(ErrorCode::kResourceExhausted,
                fmt::format("{}: {} owns {}; end it, or {}", folder.string(), owner, purpose.what, purpose.remedy));
  }
  const std::string id = fmt::format("{}\n", ::getpid());
  // For the message above only: without it the lock holds just the same.
  if (::ftruncate(descriptor_, 0) == 0 && ::pwrite(descriptor_, id.data(), id.size(), 0) < 0) errno = 0;
}

FolderLock::~FolderLock() {
  ::close(descriptor_);
}

std::optional<std::string> folder_owner(const std::filesystem::path& folder) {
  const int descriptor = ::open((folder / "LOCK").c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return std::nullopt;
  std::optional<std::string> owner;
  if (::flock(descriptor, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) owner = owner_of(descriptor);
  ::close(descriptor);
  return owner;
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw Error(ErrorCode::kIo, fmt::format("{}: cannot make the folder: {}", folder.string(), error.message()));
}

void make_private_folder(const std::filesystem::path& folder) {
  std::error_code error;
  if (std::filesystem::is_directory(folder, error)) return;
  if (folder.has_parent_path()) std::filesystem::create_directories(folder.parent_path(), error);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    throw Error(ErrorCode::kIo, fmt::format("{}: cannot be made: {}", folder.string(), reason(errno)));
  }
  if (!std::filesystem::is_directory(folder, error)) {
    throw Error(ErrorCode::kIo, fmt::format("{}: not a folder", folder.string()));
  }
}

}  // namespace tidepool
