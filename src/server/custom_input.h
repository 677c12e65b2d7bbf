#pragma once

#include <string>
#include <string_view>

namespace tidepool::responses {

/// Reads the text that a custom tool gets out of the arguments of its call, {"input": "..."}, while these are written.
/// Arguments of another form are the text themselves, and known only at their end.
class CustomInputReader {
 public:
  /// What more of the text the next piece of the arguments gives. Characters are never cut if pieces do not cut them.
  [[nodiscard]] std::string feed(std::string_view piece);
  /// The arguments are over, or cut short: what is left of the text.
  [[nodiscard]] std::string finish();

 private:
  enum class State { kHead, kText, kEscape, kUnicode, kEnd, kOther };
  void read(char c, std::string& out);
  void read_head(char c);
  void read_escape(char c, std::string& out);
  void read_unicode(char c, std::string& out);
  void flush_surrogate(std::string& out);

  State state_ = State::kHead;
  std::string arguments_;  ///< so far, while their form is open or another
  std::string digits_;     ///< of a \uXXXX
  char32_t high_ = 0;      ///< half of a surrogate pair whose other half may follow
};

}  // namespace tidepool::responses
