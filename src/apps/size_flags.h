#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <string>

namespace tidepool {

/// A number with a unit of size: "8GiB", "512 MB" (1024 each), "4096".
inline CLI::AsSizeValue size_value() {
  return CLI::AsSizeValue(false);
}

/// A number of seconds, or with a unit: "90", "10m", "72h", "3d".
inline CLI::AsNumberWithUnit seconds_value() {
  return CLI::AsNumberWithUnit(std::map<std::string, uint64_t>{{"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86'400}},
                               CLI::AsNumberWithUnit::CASE_INSENSITIVE, "TIME");
}

}  // namespace tidepool
