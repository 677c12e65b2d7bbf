#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "base/error.h"

namespace tidepool {

/// The reader of an output went away (a pipe into `head`, say). Not an error of ours or of the user.
class OutputClosed : public std::exception {
 public:
  [[nodiscard]] const char* what() const noexcept override { return "the reader of the output has gone"; }
};

/// The system refuses to take output (a full disk): there is nobody left to tell but standard error.
class OutputFailed : public Error {
 public:
  using Error::Error;
};

/// A standard stream, written at once and completely, whatever signals come between.
class Output {
 public:
  enum Stream { kStandardOutput = 1, kStandardError = 2 };
  explicit Output(Stream stream);

  /// Throws OutputClosed, or OutputFailed (kIo) when the system refuses.
  void write(std::string_view text) const;
  /// Text from a model: control characters that could drive a terminal are left out when this is one.
  void write_foreign(std::string_view text) const;

  [[nodiscard]] bool is_terminal() const { return is_terminal_; }
  /// A terminal that shows styles, unless NO_COLOR is set or TERM is "dumb".
  [[nodiscard]] bool shows_styles() const { return shows_styles_; }
  /// `text` in a faint style where there are styles.
  [[nodiscard]] std::string dimmed(std::string_view text) const;

 private:
  int descriptor_;
  bool is_terminal_;
  bool shows_styles_;
};

/// `text` without control characters other than line feed and tab.
[[nodiscard]] std::string without_controls(std::string_view text);

}  // namespace tidepool
