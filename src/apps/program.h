#pragma once

#include <string>
#include <vector>

namespace tidepool {

/// The whole program: reads the command line (without the program's name), runs the command, reports what goes wrong in
/// one line on standard error, and returns the exit status.
[[nodiscard]] int run_program(const std::vector<std::string>& arguments);

}  // namespace tidepool
