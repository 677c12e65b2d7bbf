#include "source_text.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <optional>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace tidepool {
namespace {

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

/// The word or number that ends just before `end`.
std::string_view word_before(std::string_view text, size_t end) {
  size_t begin = end;
  while (begin > 0 && (is_word(text[begin - 1]) || text[begin - 1] == '\''))
    --begin;
  return text.substr(begin, end - begin);
}

bool is_digit_separator(std::string_view text, size_t at) {
  const std::string_view word = word_before(text, at);
  return !word.empty() && std::isdigit(static_cast<unsigned char>(word.front())) != 0;
}

bool starts_raw_string(std::string_view text, size_t at) {
  const std::string_view prefix = word_before(text, at);
  return prefix == "R" || prefix == "u8R" || prefix == "uR" || prefix == "UR" || prefix == "LR";
}

/// One past the end of the comment or literal that starts at `at`, or nothing when none does.
std::optional<size_t> end_of_opaque(std::string_view text, size_t at) {
  const auto past = [&](size_t found, size_t length) {
    return found == std::string_view::npos ? text.size() : found + length;
  };
  const std::string_view rest = text.substr(at);
  if (rest.starts_with("//")) return past(text.find('\n', at), 0);
  if (rest.starts_with("/*")) return past(text.find("*/", at + 2), 2);
  const char quote = text[at];
  if (quote == '"' && starts_raw_string(text, at)) {
    const size_t open = std::min(text.find('(', at), text.size());
    const std::string close = ")" + std::string(text.substr(at + 1, open - at - 1)) + "\"";
    return past(text.find(close, open), close.size());
  }
  if (quote != '"' && (quote != '\'' || is_digit_separator(text, at))) return std::nullopt;
  size_t end = at + 1;
  while (end < text.size() && text[end] != quote && text[end] != '\n')
    end += text[end] == '\\' ? 2 : 1;
  return std::min(end + 1, text.size());
}

/// Comments and the contents of literals become blanks; quotes and line breaks stay.
std::string blank_opaque(std::string_view text) {
  std::string code(text);
  size_t at = 0;
  while (at < text.size()) {
    const std::optional<size_t> end = end_of_opaque(text, at);
    if (!end) {
      ++at;
      continue;
    }
    const bool is_literal = text[at] != '/';
    for (size_t i = at; i < *end; ++i) {
      const bool is_quote = is_literal && (i == at || i + 1 == *end);
      if (code[i] != '\n' && !is_quote) code[i] = ' ';
    }
    at = *end;
  }
  return code;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);)
    lines.push_back(std::move(line));
  return lines;
}

enum class Scope { kNamespace, kType, kFunction, kInitialiser };

/// What a brace opens, judged by the text since the last ';', '{' or '}' of the same scope.
Scope scope_of(const std::string& head, bool is_inside_parentheses) {
  static const std::regex namespace_head(R"(^\s*(inline\s+)?namespace\b|^\s*extern\s*""\s*$)");
  static const std::regex type_head(R"((^|\s|>|\))(class|struct|union|enum)\s)");
  static const std::regex template_head(R"(template\s*<[^<>]*>)");
  static const std::regex name_at_end(R"((\w+)\s*$)");
  if (head.find_first_not_of(" \n") == std::string::npos) return Scope::kInitialiser;  // a row of a table
  if (std::regex_search(head, namespace_head)) return Scope::kNamespace;
  if (is_inside_parentheses) return Scope::kInitialiser;
  const size_t parenthesis = head.find('(');
  const std::string without_template = std::regex_replace(head, template_head, "");
  if (std::regex_search(without_template + " ", type_head)) return Scope::kType;
  if (parenthesis == std::string::npos) return Scope::kInitialiser;
  std::smatch match;
  if (!std::regex_search(head, match, name_at_end)) return head.ends_with('=') ? Scope::kInitialiser : Scope::kFunction;
  static const std::vector<std::string> after_parameters = {"const", "noexcept", "override", "final", "try", "mutable"};
  const bool is_qualifier =
      std::find(after_parameters.begin(), after_parameters.end(), match[1].str()) != after_parameters.end();
  const bool has_result_or_constraint =
      head.find("->", parenthesis) != std::string::npos || head.find("requires", parenthesis) != std::string::npos;
  return is_qualifier || has_result_or_constraint ? Scope::kFunction : Scope::kInitialiser;
}

std::string trimmed_end(std::string text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0)
    text.pop_back();
  return text;
}

/// Follows the braces of one file, character by character.
class Walker {
 public:
  void step(char c, size_t line) {
    if (c == '{') {
      open(line);
    } else if (c == '}') {
      close(line);
    } else if (!is_in_function()) {
      if (c == '(') ++parentheses_;
      if (c == ')') --parentheses_;
      // The elements of a table do not belong together: a head that grew with them would cost the square of their
      // count.
      const bool ends_element = c == ',' && !open_.empty() && open_.back().scope == Scope::kInitialiser;
      if ((c == ';' || ends_element) && parentheses_ == 0) {
        head_.clear();
      } else {
        head_.push_back(c);
      }
    }
  }
  BraceWalk finish() {
    result_.is_balanced = result_.is_balanced && open_.empty() && depth_in_function_ == 0;
    return std::move(result_);
  }

 private:
  struct Open {
    Scope scope;
    std::string head;
    int parentheses;
  };

  [[nodiscard]] bool is_in_function() const { return depth_in_function_ > 0; }

  void open(size_t line) {
    if (is_in_function()) {
      ++depth_in_function_;
      return;
    }
    const Scope scope = scope_of(trimmed_end(head_), parentheses_ > 0);
    if (scope == Scope::kFunction) {
      depth_in_function_ = 1;
      result_.functions.push_back({line, line});
      return;
    }
    open_.push_back({scope, head_, parentheses_});
    head_.clear();
    parentheses_ = 0;
  }

  void close(size_t line) {
    if (is_in_function()) {
      if (--depth_in_function_ == 0) {
        result_.functions.back().last_line = line;
        head_.clear();
      }
      return;
    }
    if (open_.empty()) {
      result_.is_balanced = false;
      return;
    }
    // After a member initialiser `a_{1}` the head of the constructor goes on; after anything else a new one begins.
    const bool goes_on = open_.back().scope == Scope::kInitialiser;
    head_ = goes_on ? open_.back().head + " )" : "";
    parentheses_ = goes_on ? open_.back().parentheses : 0;
    open_.pop_back();
  }

  BraceWalk result_;
  std::vector<Open> open_;
  std::string head_;
  int parentheses_ = 0;
  int depth_in_function_ = 0;
};

}  // namespace

SourceText make_source_text(std::string path, std::string_view bytes) {
  return {std::move(path), split_lines(std::string(bytes)), split_lines(blank_opaque(bytes))};
}

std::vector<SourceText> load_source_tree(const std::filesystem::path& root, const std::vector<std::string>& folders) {
  namespace fs = std::filesystem;
  std::vector<SourceText> sources;
  for (const std::string& folder : folders) {
    if (!fs::exists(root / folder)) continue;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / folder)) {
      const fs::path& path = entry.path();
      if (!entry.is_regular_file() || (path.extension() != ".h" && path.extension() != ".cpp")) continue;
      std::ifstream stream(path, std::ios::binary);
      const std::string bytes((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
      if (!stream) throw std::runtime_error("cannot read " + path.string());
      sources.push_back(make_source_text(fs::relative(path, root).generic_string(), bytes));
    }
  }
  std::sort(sources.begin(), sources.end(), [](const SourceText& a, const SourceText& b) { return a.path < b.path; });
  return sources;
}

std::string describe(const std::vector<Violation>& violations) {
  std::string text;
  for (const Violation& violation : violations) {
    text +=
        violation.path + ":" + std::to_string(violation.line) + ": " + violation.rule + ": " + violation.message + "\n";
  }
  return text;
}

BraceWalk walk_braces(const SourceText& source) {
  Walker walker;
  bool continues_directive = false;
  for (size_t line = 0; line < source.code.size(); ++line) {
    const std::string& text = source.code[line];
    const size_t first = text.find_first_not_of(" \t");
    const bool is_directive = continues_directive || (first != std::string::npos && text[first] == '#');
    continues_directive = is_directive && text.ends_with('\\');
    if (is_directive) continue;
    for (const char c : text)
      walker.step(c, line);
    walker.step('\n', line);
  }
  return walker.finish();
}

}  // namespace tidepool
