#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tidepool {

/// A buffer that a training run must have back in order to go on: a master, a momentum.
struct NamedBuffer {
  std::string name;
  std::span<float> values;
};

/// Where a run is, beside its buffers.
struct RunState {
  std::string recipe;   ///< digest of what the run was started with; another recipe does not go on with this state
  uint64_t stage = 0;   ///< of the recipe, from 0
  uint64_t step = 0;    ///< steps done in that stage
  uint64_t tokens = 0;  ///< rows trained on in all stages
  double seconds = 0;   ///< spent on steps in all stages, for the time that is left
  /// Small numbers of others (the place in the data), by name.
  std::vector<std::pair<std::string, uint64_t>> counters;
};

/// Writes both into one file, which is replaced atomically: after kill -9 there is the state before or the state after.
/// Throws Error(kIo).
void save_run_state(const std::filesystem::path& file, const RunState& state, std::span<const NamedBuffer> buffers);

/// Reads where a run is. Throws Error: kNotFound; kCorrupt (not such a file); kInvalidArgument when `recipe` is not the
/// one it was written with.
[[nodiscard]] RunState load_run_state(const std::filesystem::path& file, const std::string& recipe);

/// Reads the buffers back; every one must be in the file with its size, and nothing else may be. Throws
/// Error(kCorrupt).
void load_run_buffers(const std::filesystem::path& file, std::span<const NamedBuffer> buffers);

}  // namespace tidepool
