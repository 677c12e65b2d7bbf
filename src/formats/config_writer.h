#pragma once

#include <string>

#include "formats/config.h"

namespace tidepool {

/// The text of a config.json that says what `config` says, with the released keys in the released order. Reading it
/// gives the same config, less `unknown_keys`.
[[nodiscard]] std::string write_config(const ModelConfig& config);

}  // namespace tidepool
