// Any bytes as the state of a training run must be read, with a place in the data from which the next batch is had at
// once, or refused with an Error.
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
#include "train/sample_packer.h"
#include "train/sample_source.h"

namespace {

class EqualSamples final : public tidepool::SampleSource {
 public:
  EqualSamples() : SampleSource("equal") {}
  [[nodiscard]] tidepool::Sample make(uint64_t /*place*/) const override {
    return {.ids = {1, 2, 3, 4}, .weights = {1, 1, 1, 0}};
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tidepool::TempFolder folder;
  const std::filesystem::path file = folder / "state.safetensors";
  tidepool::write_file_atomically(file, {reinterpret_cast<const char*>(data), size});
  std::array<float, 2> values{};
  const std::array<tidepool::NamedBuffer, 1> buffers = {{{"weight", values}}};
  try {
    const tidepool::RunState state = tidepool::load_run_state(file, "recipe");
    tidepool::load_run_buffers(file, buffers);
    const tidepool::SamplePacker::Position position = tidepool::counters_position(state.counters);
    const EqualSamples source;
    tidepool::SamplePacker packer({{&source, 1}}, {.rows = 8, .window_batches = 2});
    packer.seek(position);
    TIDEPOOL_CHECK(!packer.next().ids.empty(), "a batch without rows");
  } catch (const tidepool::Error& error) {
    TIDEPOOL_CHECK(!std::string_view(error.what()).empty(), "an error without a word");
  }
  return 0;
}
