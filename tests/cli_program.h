#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/json.h"

namespace tidepool {

/// The built program, run as a user runs it.
struct ProgramResult {
  int status = -1;  ///< exit status; -1 when a signal ended it
  std::string out;
  std::string err;

  /// Standard output read as JSON.
  [[nodiscard]] Json json() const { return parse_json(out); }
};

/// Runs `tidepool` with these arguments and this standard input, to its end.
[[nodiscard]] ProgramResult run_tidepool(const std::vector<std::string>& arguments, const std::string& input = "");

/// The same with a standard output that takes nothing: its disk is full. `out` stays empty.
[[nodiscard]] ProgramResult run_tidepool_on_full_disk(const std::vector<std::string>& arguments,
                                                      const std::string& input = "");

/// The same with a standard output that nobody reads any more. `out` stays empty.
[[nodiscard]] ProgramResult run_tidepool_unread(const std::vector<std::string>& arguments);

/// Where the golden vectors and models lie.
[[nodiscard]] std::string golden(const std::string& name);

/// A member of a JSON object, which must be there.
[[nodiscard]] const Json& at(const Json& object, std::string_view key);
/// A JSON array of integers.
[[nodiscard]] std::vector<int64_t> integers(const Json& array);

/// `tidepool` whose two outputs come line by line through one pipe that holds a single write. It waits for its reader:
/// behind a line that was read one more lies in the pipe, and with the next the program stands still, however slow the
/// reader is.
class PipedProgram {
 public:
  explicit PipedProgram(const std::vector<std::string>& arguments);
  ~PipedProgram();
  PipedProgram(const PipedProgram&) = delete;
  PipedProgram& operator=(const PipedProgram&) = delete;

  /// The next line without its line feed; nothing when the program has ended.
  [[nodiscard]] std::optional<std::string> read_line();
  /// Ctrl-C.
  void interrupt() const;
  /// Kills it with SIGKILL. False when it had ended before.
  [[nodiscard]] bool kill();
  /// Reads what is left and waits for the end; the exit status, -1 after a signal.
  [[nodiscard]] int wait();

 private:
  int output_ = -1;
  pid_t child_ = -1;
  std::string pending_;  ///< read, not yet returned
};

/// `tidepool` on a terminal of its own.
class TerminalProgram {
 public:
  explicit TerminalProgram(const std::vector<std::string>& arguments,
                           const std::vector<std::pair<std::string, std::string>>& environment = {});
  ~TerminalProgram();
  TerminalProgram(const TerminalProgram&) = delete;
  TerminalProgram& operator=(const TerminalProgram&) = delete;

  /// Types.
  void send(std::string_view keys) const;
  /// Reads until `text` came since the last call, and returns what came; all there was when the program ends or says
  /// nothing for a minute.
  [[nodiscard]] std::string read_until(std::string_view text);
  /// Waits for the end; the exit status, -1 after a signal or when there is no end for 20 seconds.
  [[nodiscard]] int wait();

 private:
  enum class More { kText, kSilence, kEnd };
  More read_more();

  int terminal_ = -1;
  pid_t child_ = -1;
  std::string pending_;  ///< read, not yet returned
};

}  // namespace tidepool
