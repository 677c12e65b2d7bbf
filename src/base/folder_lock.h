#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace tidepool {

/// What a folder is locked for, to be said when that fails.
struct FolderPurpose {
  std::string_view what;    ///< "this KV store"
  std::string_view remedy;  ///< when another process owns it: "take another folder (--kv-dir)"
};

/// Owns a folder for as long as it lives, by a file LOCK in it; the system gives it up when the process ends, however
/// it ends.
class FolderLock {
 public:
  /// Throws Error: kResourceExhausted naming the process that owns the folder, kIo when it cannot be locked.
  FolderLock(const std::filesystem::path& folder, const FolderPurpose& purpose);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
};

/// "process 123" when a process owns the folder.
[[nodiscard]] std::optional<std::string> folder_owner(const std::filesystem::path& folder);

/// Makes the folder and those above it that are not there. Throws Error(kIo) naming it.
void make_folder(const std::filesystem::path& folder);

/// Makes the folder and those above it that are not there, itself open to its owner only (0700). Throws Error(kIo).
void make_private_folder(const std::filesystem::path& folder);

}  // namespace tidepool
