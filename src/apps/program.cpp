#include "apps/program.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <exception>
#include <new>
#include <string_view>

#include "apps/command.h"
#include "apps/output.h"
#include "base/error.h"
#include "base/log.h"
#include "text/json.h"

namespace tidepool {
namespace {

constexpr std::string_view kProgramExamples =
    "Examples:\n"
    "  tidepool inspect MODEL                     what a checkpoint holds and what it needs\n"
    "  tidepool run MODEL -p \"Why is the sky blue?\"\n"
    "  tidepool chat MODEL --effort low\n"
    "  tidepool serve MODEL                       for programs and agents, at http://127.0.0.1:8000\n"
    "\n"
    "MODEL is a folder with config.json, tokenizer.json and the safetensors files, as released.\n"
    "tidepool COMMAND --help says more about each command.";

void report(std::string_view code, std::string_view message, bool as_json) {
  Output error(Output::kStandardError);
  if (!as_json) {
    error.write(fmt::format("tidepool: error: {}\n", printable(message, message.size())));
    return;
  }
  Json body = Json::make_object();
  body.set("code", Json::make_string(std::string(code)));
  body.set("message", Json::make_string(std::string(message)));
  Json line = Json::make_object();
  line.set("error", std::move(body));
  error.write(write_json(line) + "\n");
}

/// Reads the command line; nothing when there is nothing to run: help or a mistake was written.
std::optional<int> parse(CLI::App& program, const std::vector<std::string>& arguments, bool as_json) {
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // CLI11 takes them from the back
  try {
    program.parse(std::move(reversed));
    return std::nullopt;
  } catch (const CLI::CallForVersion& version) {
    Output(Output::kStandardOutput).write(fmt::format("{}\n", version.what()));
    return kExitOk;
  } catch (const CLI::Success&) {  // help
    Output(Output::kStandardOutput).write(program.help());
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    report("usage", fmt::format("{} (see --help)", error.what()), as_json);
    return kExitUsage;
  }
}

int run_command(const std::vector<std::string>& arguments, bool& as_json) {
  CLI::App program("Runs DeepSeek-V4.1-Flash, and models of its architecture, on the processors of this machine.",
                   "tidepool");
  program.set_version_flag("--version", "tidepool " TIDEPOOL_VERSION);
  program.require_subcommand(0, 1);  // none is reported below, in better words
  program.footer(std::string(kProgramExamples));
  Invocation invocation;
  add_run_command(program, invocation);
  add_chat_command(program, invocation);
  add_serve_command(program, invocation);
  add_inspect_command(program, invocation);
  add_trace_command(program, invocation);
  add_vectors_command(program, invocation);
  add_cache_command(program, invocation);
  add_bench_command(program, invocation);
  add_train_command(program, invocation);
  add_eval_command(program, invocation);
  if (const std::optional<int> status = parse(program, arguments, as_json)) return *status;
  as_json = invocation.wants_json;
  if (!invocation.body) {
    report("usage", "no command is given; tidepool --help lists them", as_json);
    return kExitUsage;
  }
  return invocation.body();
}

/// A mapped file that was cut short, or whose disk fails, is met in the middle of arithmetic, as a signal. The work is
/// lost, but not the reason. Calls only what a signal handler may; what was being written is as safe as after kill -9.
extern "C" void end_on_bus_error(int /*signal*/) {
  constexpr std::string_view kMessage =
      "tidepool: error: a file of the model was cut short or can no longer be read (SIGBUS); leave model folders "
      "unchanged while they are in use, look at this one with tidepool inspect, and start again\n";
  if (::write(STDERR_FILENO, kMessage.data(), kMessage.size()) < 0) ::_exit(kExitRefused);
  ::_exit(kExitRefused);
}

}  // namespace

int run_program(const std::vector<std::string>& arguments) {
  // A reader that goes away is seen as a failed write, which ends the command in order.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGBUS, end_on_bus_error);
  bool as_json = std::ranges::find(arguments, "--json") != arguments.end();
  try {
    try {
      return run_command(arguments, as_json);
    } catch (const OutputClosed&) {
      return kExitOk;  // the reader has what it wanted
    } catch (const Error& error) {
      report(error_code_name(error.code()), error.what(), as_json);
    } catch (const std::bad_alloc&) {
      report(error_code_name(ErrorCode::kResourceExhausted),
             "out of memory; a smaller --chunk or --max-model-len needs less", as_json);
    } catch (const std::exception& error) {
      report("internal", error.what(), as_json);
    }
  } catch (const std::exception&) {
    return kExitRefused;  // standard error is gone as well: nobody left to tell
  }
  return kExitRefused;
}

}  // namespace tidepool
