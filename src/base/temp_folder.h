#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "base/check.h"

namespace tidepool {

/// A fresh folder below the system's temporary one, removed with all it holds at the end. For tests and tools.
class TempFolder {
 public:
  TempFolder() : TempFolder(std::filesystem::temp_directory_path()) {}
  /// Below `parent` instead.
  explicit TempFolder(const std::filesystem::path& parent) {
    std::string pattern = (parent / "tidepool.XXXXXX").string();
    const char* made = ::mkdtemp(pattern.data());
    TIDEPOOL_CHECK(made != nullptr, "no temporary folder");
    path_ = made;
  }
  ~TempFolder() {
    std::error_code ignored;  // a destructor has nobody to tell
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace tidepool
