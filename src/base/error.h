#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace tidepool {

/// What kind of outside thing was refused. Closed: every place that maps errors (exit codes, HTTP) switches over all of
/// it.
enum class ErrorCode {
  kInvalidArgument,    ///< an option, request or text the caller can correct
  kNotFound,           ///< a file, tensor or key that is not there
  kCorrupt,            ///< a file whose bytes contradict themselves
  kUnsupported,        ///< well-formed, but not something this program can honour
  kIo,                 ///< the operating system refused (disk, permission, socket)
  kResourceExhausted,  ///< a stated limit was reached
  kCancelled,          ///< the caller asked to stop, or its deadline passed
  kNumeric,            ///< the arithmetic gave no usable answer (NaN or all -inf logits)
};

/// Stable lower-case name, e.g. "invalid_argument"; used in JSON output.
std::string_view error_code_name(ErrorCode code);

/// The outside world refused something. The message names the thing, the place and the remedy.
/// Bugs of our own are not Errors: see TIDEPOOL_CHECK.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  [[nodiscard]] ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

/// Refuses what a caller gave, with kInvalidArgument. `path` says where it stands: "messages[0].content".
[[noreturn]] void refuse_argument(std::string_view path, std::string_view what);

}  // namespace tidepool
