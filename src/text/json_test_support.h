#pragma once

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

#include "text/json.h"

namespace tidepool {

/// The cases of tests/golden/`name`. For tests only. Keep the result in a variable: a loop over a member of a temporary
/// outlives it.
inline Json load_golden_cases(const std::string& name) {
  const std::string path = std::string(TIDEPOOL_GOLDEN_DIR) + "/" + name;
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open " + path);
  std::stringstream text;
  text << file.rdbuf();
  const Json document = parse_json(text.str());
  const Json* cases = document.find("cases");
  if (cases == nullptr || cases->as_array().empty()) throw std::runtime_error(path + " has no cases");
  return *cases;
}

}  // namespace tidepool
