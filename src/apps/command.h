#pragma once

#include <functional>

#include "apps/cli_app.h"

namespace tidepool {

/// Exit statuses of the program. (docs/commands.md)
inline constexpr int kExitOk = 0;
inline constexpr int kExitRefused = 1;  ///< a file, a request or the machine said no
inline constexpr int kExitUsage = 2;    ///< the command line is wrong

/// What the command line asked for.
struct Invocation {
  /// Returns the exit status; throws Error.
  std::function<int()> body;
  /// Errors are written as JSON too.
  bool wants_json = false;
};

/// Each adds one command to the program; when the command line names it, the command fills in `invocation`.
void add_bench_command(CLI::App& program, Invocation& invocation);
void add_cache_command(CLI::App& program, Invocation& invocation);
void add_chat_command(CLI::App& program, Invocation& invocation);
void add_eval_command(CLI::App& program, Invocation& invocation);
void add_inspect_command(CLI::App& program, Invocation& invocation);
void add_run_command(CLI::App& program, Invocation& invocation);
void add_serve_command(CLI::App& program, Invocation& invocation);
void add_trace_command(CLI::App& program, Invocation& invocation);
void add_train_command(CLI::App& program, Invocation& invocation);
void add_vectors_command(CLI::App& program, Invocation& invocation);

}  // namespace tidepool
