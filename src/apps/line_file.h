#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace tidepool {

/// A file that lines are appended to as they come. Thread-safe.
class LineFile {
 public:
  /// "-" is standard error. Throws Error(kIo) naming the file.
  explicit LineFile(const std::string& path);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  /// A line that the system does not take is lost: a full disk must not end the server. The log says so when lines
  /// begin to be lost, and how many were when they are taken again.
  void write(std::string_view line);

 private:
  [[nodiscard]] bool try_write(std::string_view line);

  std::string path_;
  std::mutex mutex_;  ///< keeps lines whole, and guards the next
  uint64_t lost_ = 0;
  bool is_cut_ = false;  ///< the file ends within a line
  int descriptor_ = -1;
  bool is_owned_ = false;
};

}  // namespace tidepool
