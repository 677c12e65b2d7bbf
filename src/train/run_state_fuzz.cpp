// Any bytes as the state of a training run must be read or refused with an Error that names the file.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "base/file.h"
#include "base/temp_folder.h"
#include "train/mixture.h"
#include "train/run_state.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tidepool::TempFolder folder;
  const std::filesystem::path file = folder / "state.safetensors";
  tidepool::write_file_atomically(file, {reinterpret_cast<const char*>(data), size});
  std::array<float, 2> values{};
  const std::array<tidepool::NamedBuffer, 1> buffers = {{{"weight", values}}};
  try {
    const tidepool::RunState state = tidepool::load_run_state(file, "recipe");
    tidepool::load_run_buffers(file, buffers);
    (void)tidepool::counters_position(state.counters);
  } catch (const tidepool::Error& error) {
    TIDEPOOL_CHECK(!std::string_view(error.what()).empty(), "an error without a word");
  }
  return 0;
}
