#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "source_text.h"

namespace tidepool {

/// The floors in order, each with its number: the table of docs/architecture.md.
const std::vector<std::pair<std::string_view, int>>& floor_table();

/// Whether a file of floor `from` may include a header of floor `to`. A floor may use itself and the ones below it, not
/// its neighbours on the same height; `text` may use `base` only, and tensors stay out of it.
bool may_include(std::string_view from, std::string_view to);

/// Every include in files below src/ that runs upward or sideways, or that is not written as "floor/x.h".
std::vector<Violation> check_floors(const std::vector<SourceText>& sources);

}  // namespace tidepool
