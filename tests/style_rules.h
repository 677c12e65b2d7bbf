#pragma once

#include <vector>

#include "source_text.h"

namespace tidepool {

/// The rules of docs/style.md that can be told from the text of one C++ file. Each violation names file, line, rule and
/// remedy; the lists of places where a rule has an exception, with the reason, are in style_rules.cpp.
std::vector<Violation> check_style(const SourceText& source);

}  // namespace tidepool
