// Input: the text of a config.json. Whatever is accepted must have a tensor table of sizes that fit.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "formats/checkpoint.h"
#include "formats/config.h"

namespace {

/// The table grows with layers and experts; a config for billions of tensors is fine, but not to be spelled out here.
bool is_small(const tidepool::ModelConfig& config) {
  const int64_t stages = config.dspark ? config.dspark->num_layers : 0;
  const int64_t experts = config.dspark ? config.dspark->n_routed_experts : 0;
  return config.num_hidden_layers * config.n_routed_experts + stages * experts < 100;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const tidepool::ModelConfig config = tidepool::parse_config(text, "fuzz");
    tidepool::check_config(config, "fuzz");
    if (!is_small(config)) return 0;
    for (const tidepool::ExpectedTensor& tensor : tidepool::expected_tensors(config)) {
      TIDEPOOL_CHECK(tidepool::tensor_bytes(tensor.dtype, tensor.shape).has_value(), "a tensor too large to be one");
    }
  } catch (const tidepool::Error& error) {
    TIDEPOOL_CHECK(std::string_view(error.what()).starts_with("fuzz: "), "an error that does not name the file");
  }
  return 0;
}
