#include "cli_program.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "base/temp_folder.h"

namespace tidepool {
namespace {

constexpr int kPatienceMs = 20'000;

std::string read_text(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

/// In the child: becomes the program.
[[noreturn]] void become_tidepool(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), TIDEPOOL_PROGRAM);
  std::vector<char*> pointers;
  pointers.reserve(arguments.size() + 1);
  for (std::string& argument : arguments)
    pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  ::execv(TIDEPOOL_PROGRAM, pointers.data());
  std::_Exit(127);
}

void redirect(int descriptor, const std::filesystem::path& file, int flags) {
  const int opened = ::open(file.c_str(), flags, 0600);
  if (opened < 0 || ::dup2(opened, descriptor) < 0) std::_Exit(126);
}

int exit_status(pid_t child) {
  int status = 0;
  TIDEPOOL_CHECK(::waitpid(child, &status, 0) == child, "the child can be waited for");
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// Runs the program with `output` as its standard output; a relative name lies in a folder of its own.
ProgramResult run_with_output(const std::vector<std::string>& arguments, const std::string& input,
                              const std::filesystem::path& output) {
  const TempFolder folder;
  std::ofstream(folder / "in", std::ios::binary) << input;
  const pid_t child = ::fork();
  TIDEPOOL_CHECK(child >= 0, "a process can be made");
  if (child == 0) {
    redirect(STDIN_FILENO, folder / "in", O_RDONLY);
    redirect(STDOUT_FILENO, folder.path() / output, O_WRONLY | O_CREAT);
    redirect(STDERR_FILENO, folder / "err", O_WRONLY | O_CREAT);
    become_tidepool(arguments);
  }
  ProgramResult result;
  result.status = exit_status(child);
  if (output.is_relative()) result.out = read_text(folder.path() / output);
  result.err = read_text(folder / "err");
  return result;
}

}  // namespace

ProgramResult run_tidepool(const std::vector<std::string>& arguments, const std::string& input) {
  return run_with_output(arguments, input, "out");
}

ProgramResult run_tidepool_on_full_disk(const std::vector<std::string>& arguments, const std::string& input) {
  return run_with_output(arguments, input, "/dev/full");
}

ProgramResult run_tidepool_unread(const std::vector<std::string>& arguments) {
  const TempFolder folder;
  std::array<int, 2> ends{};
  TIDEPOOL_CHECK(::pipe(ends.data()) == 0, "a pipe can be made");
  ::close(ends[0]);
  const pid_t child = ::fork();
  TIDEPOOL_CHECK(child >= 0, "a process can be made");
  if (child == 0) {
    if (::dup2(ends[1], STDOUT_FILENO) < 0) std::_Exit(126);
    redirect(STDERR_FILENO, folder / "err", O_WRONLY | O_CREAT);
    become_tidepool(arguments);
  }
  ::close(ends[1]);
  ProgramResult result;
  result.status = exit_status(child);
  result.err = read_text(folder / "err");
  return result;
}

std::string golden(const std::string& name) {
  return std::string(TIDEPOOL_GOLDEN_DIR) + "/" + name;
}

const Json& at(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  TIDEPOOL_CHECK(value != nullptr, std::string(key) + " is missing in " + write_json(object));
  return *value;
}

std::vector<int64_t> integers(const Json& array) {
  std::vector<int64_t> values;
  values.reserve(array.as_array().size());
  for (const Json& value : array.as_array())
    values.push_back(value.try_int64().value());
  return values;
}

PipedProgram::PipedProgram(const std::vector<std::string>& arguments) {
  std::array<int, 2> ends{};
  // With O_DIRECT each write takes pages of its own (pipe(2)), and this pipe has one.
  TIDEPOOL_CHECK(::pipe2(ends.data(), O_CLOEXEC | O_DIRECT) == 0, "a pipe can be made");
  const auto page = static_cast<int>(::sysconf(_SC_PAGESIZE));
  TIDEPOOL_CHECK(::fcntl(ends[1], F_SETPIPE_SZ, page) == page, "a pipe can be made small");
  child_ = ::fork();
  TIDEPOOL_CHECK(child_ >= 0, "a process can be made");
  if (child_ == 0) {
    if (::dup2(ends[1], STDOUT_FILENO) < 0 || ::dup2(ends[1], STDERR_FILENO) < 0) std::_Exit(126);
    become_tidepool(arguments);
  }
  ::close(ends[1]);
  output_ = ends[0];
}

PipedProgram::~PipedProgram() {
  if (child_ > 0) (void)kill();
  ::close(output_);
}

std::optional<std::string> PipedProgram::read_line() {
  while (true) {
    if (const size_t end = pending_.find('\n'); end != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return line;
    }
    std::array<char, PIPE_BUF> buffer{};  // the most that one write holds here
    const ssize_t bytes = ::read(output_, buffer.data(), buffer.size());
    if (bytes <= 0) return std::nullopt;
    pending_.append(buffer.data(), static_cast<size_t>(bytes));
  }
}

void PipedProgram::interrupt() const {
  TIDEPOOL_CHECK(::kill(child_, SIGINT) == 0, "a child can be signalled");
}

bool PipedProgram::kill() {
  ::kill(child_, SIGKILL);
  int status = 0;
  TIDEPOOL_CHECK(::waitpid(std::exchange(child_, -1), &status, 0) > 0, "the child can be waited for");
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

int PipedProgram::wait() {
  while (read_line())
    continue;
  return exit_status(std::exchange(child_, -1));
}

TerminalProgram::TerminalProgram(const std::vector<std::string>& arguments,
                                 const std::vector<std::pair<std::string, std::string>>& environment) {
  const winsize size{40, 200, 0, 0};
  child_ = ::forkpty(&terminal_, nullptr, nullptr, &size);
  TIDEPOOL_CHECK(child_ >= 0, "a terminal can be made");
  if (child_ != 0) return;
  ::setenv("TERM", "xterm", 1);
  ::unsetenv("NO_COLOR");
  for (const auto& [name, value] : environment)
    ::setenv(name.c_str(), value.c_str(), 1);
  become_tidepool(arguments);
}

TerminalProgram::~TerminalProgram() {
  if (child_ > 0) {
    ::kill(child_, SIGKILL);
    (void)exit_status(child_);
  }
  ::close(terminal_);
}

void TerminalProgram::send(std::string_view keys) const {
  TIDEPOOL_CHECK(::write(terminal_, keys.data(), keys.size()) == static_cast<ssize_t>(keys.size()),
                 "a terminal takes what is typed");
}

std::string TerminalProgram::read_until(std::string_view text) {
  while (true) {
    if (const size_t found = pending_.find(text); found != std::string::npos) {
      const std::string result = pending_.substr(0, found + text.size());
      pending_.erase(0, result.size());
      return result;
    }
    if (read_more() != More::kText) return std::exchange(pending_, {});
  }
}

TerminalProgram::More TerminalProgram::read_more() {
  pollfd ready{terminal_, POLLIN, 0};
  if (::poll(&ready, 1, kPatienceMs) <= 0) return More::kSilence;
  std::array<char, 4096> buffer{};
  const ssize_t bytes = ::read(terminal_, buffer.data(), buffer.size());
  if (bytes <= 0) return More::kEnd;
  pending_.append(buffer.data(), static_cast<size_t>(bytes));
  return More::kText;
}

int TerminalProgram::wait() {
  More more = More::kText;
  while (more == More::kText)
    more = read_more();
  if (more == More::kSilence) ::kill(child_, SIGKILL);
  const int status = exit_status(child_);
  child_ = -1;
  return status;
}

}  // namespace tidepool
