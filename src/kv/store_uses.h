#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "base/file.h"
#include "kv/block_key.h"

/// When chains were last used, in a file beside the segments: one small record for the end of each. (docs/kv_store.md)
namespace tidepool::store {

struct Use {
  BlockKey key;
  int64_t time = 0;  ///< seconds since 1970
  /// Not 0: the record of `key` that says it was written at this time, which was in the future, counts as used at
  /// `time`. So clocks that once went wrong keep nothing for ever.
  int64_t written = 0;
};

inline constexpr uint64_t kUseBytes = 64;
/// Name of the file in the folder.
inline constexpr const char* kUsesName = "uses.log";

/// All whole records of the file, in the order they were written; damaged ones are left out and counted. A file that is
/// not there has none. Throws Error(kIo).
struct UsesRead {
  std::vector<Use> uses;
  uint64_t damaged = 0;
};
[[nodiscard]] UsesRead read_uses(FileSystem& files, const std::filesystem::path& folder);

/// Replaces the file.
void rewrite_uses(FileSystem& files, const std::filesystem::path& folder, std::span<const Use> uses);

/// The end of the file. One thread at a time; failures throw Error(kIo).
class UsesWriter {
 public:
  UsesWriter(FileSystem& files, const std::filesystem::path& folder);
  [[nodiscard]] uint64_t bytes() const { return end_; }
  void append(const Use& use);
  void sync() { file_->sync(); }

 private:
  std::unique_ptr<File> file_;
  uint64_t end_ = 0;
};

}  // namespace tidepool::store
