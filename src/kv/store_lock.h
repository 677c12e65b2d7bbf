#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace tidepool::store {

/// Owns a store's folder for as long as it lives; the system gives it up when the process ends, however it ends.
class FolderLock {
 public:
  /// Throws Error: kResourceExhausted naming the process that owns the folder, kIo when it cannot be locked.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
};

/// "process 123" when a process owns the folder.
[[nodiscard]] std::optional<std::string> folder_owner(const std::filesystem::path& folder);

/// Makes the folder and those above it that are not there, itself open to its owner only (0700). Throws Error(kIo).
void make_private_folder(const std::filesystem::path& folder);

}  // namespace tidepool::store
