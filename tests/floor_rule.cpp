#include "floor_rule.h"

#include <algorithm>
#include <optional>
#include <regex>

namespace tidepool {
namespace {

std::optional<int> height_of(std::string_view floor) {
  for (const auto& [name, height] : floor_table()) {
    if (name == floor) return height;
  }
  return std::nullopt;
}

std::string first_folder(const std::string& path) {
  return path.substr(0, path.find('/'));
}

/// What is wrong with an include of `target` in a file of `floor`, or nothing.
std::string complaint(const std::string& floor, const std::string& target, bool is_quoted) {
  const std::string target_floor = first_folder(target);
  const bool names_floor = target.find('/') != std::string::npos && height_of(target_floor).has_value();
  if (!is_quoted) return names_floor ? "write headers of Tidepool in quotes" : "";
  if (!names_floor) return "\"" + target + "\" names no floor; write \"floor/x.h\", and other libraries in <>";
  if (may_include(floor, target_floor)) return "";
  return floor + "/ must not include \"" + target + "\": " + target_floor +
         "/ is not below it (table in docs/architecture.md)";
}

void check_file(const SourceText& source, std::vector<Violation>& violations) {
  static const std::regex include(R"re(^\s*#\s*include\s*([<"])([^>"]+)[>"])re");
  const std::string below_src = source.path.substr(std::string_view("src/").size());
  const std::string floor = first_folder(below_src);
  if (!height_of(floor)) {
    violations.push_back({source.path, 1, "floors", "src/" + floor + " is not in the table of docs/architecture.md"});
    return;
  }
  for (size_t i = 0; i < source.lines.size(); ++i) {
    std::smatch match;
    // The blanked line says whether the directive is code; the line as written has the name.
    if (source.code[i].find('#') == std::string::npos || !std::regex_search(source.lines[i], match, include)) continue;
    const std::string message = complaint(floor, match[2], match[1] == "\"");
    if (!message.empty()) violations.push_back({source.path, i + 1, "floors", message});
  }
}

}  // namespace

const std::vector<std::pair<std::string_view, int>>& floor_table() {
  static const std::vector<std::pair<std::string_view, int>> table = {
      {"base", 0}, {"formats", 1}, {"image", 1},  {"kernels", 2}, {"kv", 3},    {"model", 4}, {"engine", 5},
      {"text", 5}, {"session", 6}, {"server", 7}, {"train", 7},   {"bench", 7}, {"apps", 8},
  };
  return table;
}

bool may_include(std::string_view from, std::string_view to) {
  if (from == to) return true;
  if (from == "text") return to == "base";
  const std::optional<int> from_height = height_of(from);
  const std::optional<int> to_height = height_of(to);
  return from_height && to_height && *to_height < *from_height;
}

std::vector<Violation> check_floors(const std::vector<SourceText>& sources) {
  std::vector<Violation> violations;
  for (const SourceText& source : sources) {
    if (source.path.starts_with("src/")) check_file(source, violations);
  }
  return violations;
}

}  // namespace tidepool
