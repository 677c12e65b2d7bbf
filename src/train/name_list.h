#pragma once

#include <algorithm>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace tidepool {

/// "a, b, c": what there is, for messages about a name that there is not. (fmt::join makes g++ 12 warn of an overflow
/// inside fmt where this folder's optimisation is on.)
[[nodiscard]] inline std::string name_list(std::span<const std::string_view> names) {
  std::string list;
  for (const std::string_view name : names)
    list.append(list.empty() ? "" : ", ").append(name);
  return list;
}

[[nodiscard]] inline bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> endings) {
  return std::ranges::any_of(endings, [&](std::string_view ending) { return name.ends_with(ending); });
}

}  // namespace tidepool
