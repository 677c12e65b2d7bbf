#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tidepool {

/// A C++ file as the tests of this folder look at it.
struct SourceText {
  std::string path;                ///< relative to the project, with '/': "src/base/error.h"
  std::vector<std::string> lines;  ///< as written
  /// The same lines with comments and the contents of string and character literals blanked, column for column.
  std::vector<std::string> code;

  [[nodiscard]] bool is_header() const { return path.ends_with(".h"); }
  [[nodiscard]] bool is_test() const { return path.ends_with("_test.cpp") || path.starts_with("tests/"); }
};

/// A rule that a line breaks.
struct Violation {
  std::string path;
  size_t line = 0;   ///< counted from 1, as editors do
  std::string rule;  ///< a short stable name, e.g. "line-length"
  std::string message;
};

SourceText make_source_text(std::string path, std::string_view bytes);

/// Every .h and .cpp file below `root`/`folder` for each folder, sorted by path; folders that do not exist hold none.
/// Throws std::filesystem::filesystem_error or std::runtime_error when a file cannot be read.
std::vector<SourceText> load_source_tree(const std::filesystem::path& root, const std::vector<std::string>& folders);

/// "path:line: rule: message", one a line, for assertion messages.
std::string describe(const std::vector<Violation>& violations);

/// A function's body, from the line of its opening brace to that of its closing brace, counted from 0.
struct FunctionBody {
  size_t first_line = 0;
  size_t last_line = 0;
};

/// What a walk over the braces of a file found.
struct BraceWalk {
  std::vector<FunctionBody> functions;  ///< outermost only: a lambda belongs to the function that holds it
  bool is_balanced = true;              ///< false when the walk lost count, so the functions cannot be trusted
};

/// Finds the function bodies of a file by its braces, without compiling it: a brace opens a function when what stands
/// before it has parentheses and is neither a namespace, a type nor an initialiser.
BraceWalk walk_braces(const SourceText& source);

}  // namespace tidepool
