#pragma once

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

  /// A line that the system does not take is lost: a full disk must not end the server.
  void write(std::string_view line);

 private:
  std::mutex mutex_;  ///< keeps lines whole
  int descriptor_ = -1;
  bool is_owned_ = false;
};

}  // namespace tidepool
