#pragma once

#include <memory>
#include <string>

namespace tidepool {

/// Reads lines: from a terminal with editing and history, from anything else as they come.
class LineEditor {
 public:
  /// Whether standard input and output are one's terminal is looked up once.
  LineEditor();
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  enum class Outcome {
    kLine,
    kInterrupted,  ///< Ctrl-C: the line is to be forgotten. Terminals only.
    kEnd,          ///< Ctrl-D on an empty line, or the end of the input
  };
  struct Input {
    Outcome outcome = Outcome::kEnd;
    std::string line;  ///< without its line feed
  };
  /// `prompt` is shown on a terminal only.
  [[nodiscard]] Input read(const std::string& prompt);

  [[nodiscard]] bool is_terminal() const { return terminal_ != nullptr; }

 private:
  class Terminal;
  std::unique_ptr<Terminal> terminal_;  ///< null without a terminal
};

}  // namespace tidepool
