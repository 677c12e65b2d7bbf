#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/json.h"

namespace tidepool {

/// Short names for the values of which commands make their JSON.
[[nodiscard]] inline Json json_count(uint64_t value) {
  return Json::make_number(std::to_string(value));
}
[[nodiscard]] inline Json json_real(double value) {
  return Json::make_number(shortest_real(value));
}
[[nodiscard]] inline Json json_text(std::string_view value) {
  return Json::make_string(std::string(value));
}

}  // namespace tidepool
