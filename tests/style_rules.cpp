#include "style_rules.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <regex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tidepool {
namespace {

constexpr size_t kColumnsMax = 120;
constexpr size_t kFunctionLinesMax = 70;
/// A kernel's straight-line phases may stay in one body.
constexpr size_t kKernelLinesMax = 150;

/// A place where a rule does not hold, and why.
struct Exception {
  std::string_view path;
  std::string_view reason;
};

constexpr std::array kMayCatchAll = {
    Exception{"src/base/thread_pool.cpp", "a failure in a pool thread is carried to the caller and rethrown there"},
};
constexpr std::array kMayPrint = {
    Exception{"src/base/check.cpp", "a broken invariant is reported without the logger, just before the abort"},
    Exception{"src/base/file.cpp", "a destructor that cannot remove its temporary file says so and carries on"},
};
constexpr std::array kMaySkip = {
    Exception{"src/text/tokenizer_released.h",
              "the real vocabulary is fetched by tests/fetch_tokenizer.sh, not kept here"},
};
constexpr std::array kMayIncludeIntrinsics = {
    Exception{"src/base/thread_pool.cpp", "the pause instruction of its short spin"},
    Exception{"src/kernels/top_k.cpp", "SSE2 only, which every x86-64 has: no choice at run time is needed"},
    Exception{"bench/machine_limits.cpp", "measures the peak of this machine's instructions"},
};
constexpr std::array kNamesTheWords = {
    Exception{"tests/style_rules.cpp", "states the words that no other file may have"},
    Exception{"tests/tidy_test.cpp", "quotes them in its samples"},
};
/// Hosts that stand for no place: this machine, the names reserved for examples, the text of the licence, and the name
/// of the SVG format, which nobody visits.
constexpr std::array<std::string_view, 7> kHostsAllowed = {
    "localhost", "127.0.0.1", "[::1]", "example.com", "www.example.com", "www.apache.org", "www.w3.org"};

template <size_t count>
bool is_listed(const std::array<Exception, count>& exceptions, const SourceText& source) {
  return std::any_of(exceptions.begin(), exceptions.end(),
                     [&](const Exception& exception) { return exception.path == source.path; });
}

bool has_any(std::string_view line, const std::vector<std::string_view>& words) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return line.find(word) != std::string_view::npos; });
}

/// Collects the violations of one file.
class Report {
 public:
  explicit Report(const SourceText& source) : source_(source) {}

  void add(size_t line, std::string rule, std::string message) {
    violations_.push_back({source_.path, line + 1, std::move(rule), std::move(message)});
  }
  /// One violation for each code line that has one of the `hints` and matches. (std::regex is slow: the hints spare it
  /// nearly all lines.)
  void add_matching(const std::string& rule, const std::vector<std::string_view>& hints, const std::regex& pattern,
                    const std::string& message) {
    for (size_t i = 0; i < source_.code.size(); ++i) {
      if (has_any(source_.code[i], hints) && std::regex_search(source_.code[i], pattern)) add(i, rule, message);
    }
  }
  [[nodiscard]] std::vector<Violation> take() { return std::move(violations_); }

 private:
  const SourceText& source_;
  std::vector<Violation> violations_;
};

void check_line_length(const SourceText& source, Report& report) {
  for (size_t i = 0; i < source.lines.size(); ++i) {
    // Bytes 10xxxxxx continue a UTF-8 character.
    const auto columns = static_cast<size_t>(std::count_if(source.lines[i].begin(), source.lines[i].end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
    }));
    if (columns > kColumnsMax) {
      report.add(i, "line-length", std::to_string(columns) + " columns; at most " + std::to_string(kColumnsMax));
    }
  }
}

void check_functions(const SourceText& source, const BraceWalk& walk, Report& report) {
  if (!walk.is_balanced) {
    report.add(0, "function-length",
               "its braces do not pair up (perhaps across #if branches), so it cannot be measured");
    return;
  }
  const bool is_kernel = source.path.starts_with("src/kernels/") && !source.is_test();
  const size_t lines_max = is_kernel ? kKernelLinesMax : kFunctionLinesMax;
  for (const FunctionBody& function : walk.functions) {
    const size_t lines = function.last_line - function.first_line + 1;
    if (lines <= lines_max) continue;
    report.add(
        function.first_line, "function-length",
        "a function of " + std::to_string(lines) + " lines; at most " + std::to_string(lines_max) + ", split it");
  }
}

void check_using_namespace(const SourceText& source, const BraceWalk& walk, Report& report) {
  static const std::regex pattern(R"(\busing\s+namespace\b)");
  for (size_t i = 0; i < source.code.size(); ++i) {
    if (source.code[i].find("namespace") == std::string::npos) continue;
    const bool is_in_function =
        std::any_of(walk.functions.begin(), walk.functions.end(),
                    [&](const FunctionBody& body) { return body.first_line <= i && i <= body.last_line; });
    if (!is_in_function && std::regex_search(source.code[i], pattern)) {
      report.add(i, "using-namespace", "no `using namespace` at file scope; name what is used");
    }
  }
}

void check_header(const SourceText& source, Report& report) {
  if (!source.is_header()) return;
  const auto first = std::find_if(source.code.begin(), source.code.end(), [](const std::string& line) {
    return line.find_first_not_of(" \t\r") != std::string::npos;
  });
  if (first == source.code.end() || !first->starts_with("#pragma once")) {
    report.add(0, "pragma-once", "a header begins with #pragma once");
  }
}

/// Whether the path names one instruction set: such files alone may use intrinsics and each other's headers. Elsewhere
/// the linker could keep a copy of an inline function that the machine cannot run.
bool is_of_one_instruction_set(const std::string& path) {
  static const std::regex pattern(R"(^src/kernels/(\w+_)?(avx2|avx512|avx512bf16|amx)(_internal)?\.(h|cpp)$)");
  return std::regex_search(path, pattern);
}

void check_includes(const SourceText& source, Report& report) {
  static const std::regex intrinsics(R"(^\s*#\s*include\s*<(\w*intrin|x86gprintrin)\.h>)");
  static const std::regex heavy(R"(^\s*#\s*include\s*[<"](nlohmann/|simdjson|spdlog/|boost/|rocksdb/|torch/))");
  static const std::regex ours(R"re(^\s*#\s*include\s*"([^"]+)")re");
  const bool may_use_instructions = is_of_one_instruction_set(source.path);
  for (size_t i = 0; i < source.lines.size(); ++i) {
    if (source.code[i].find('#') == std::string::npos) continue;
    const std::string& line = source.lines[i];
    if (std::regex_search(line, intrinsics) && !may_use_instructions && !is_listed(kMayIncludeIntrinsics, source)) {
      report.add(i, "intrinsics", "only src/kernels/*_avx2, *_avx512, *_avx512bf16 and *_amx files include intrinsics");
    }
    std::smatch match;
    if (std::regex_search(line, match, ours) && !may_use_instructions &&
        is_of_one_instruction_set("src/" + match[1].str())) {
      report.add(i, "intrinsics", "only files of one instruction set include a header of one");
    }
    if (source.is_header() && std::regex_search(line, heavy)) {
      report.add(i, "heavy-header",
                 "a heavy header in a header of ours; forward-declare or hide it behind a private struct");
    }
  }
}

void check_exceptions_and_output(const SourceText& source, Report& report) {
  static const std::regex catch_all(R"(\bcatch\s*\(\s*\.\.\.\s*\))");
  static const std::regex print(
      R"(\bstd::(cout|cerr|clog)\b|\b(printf|fprintf|puts|fputs|putchar)\s*\(|\bfmt::print\b)");
  static const std::regex skip(R"(\bGTEST_SKIP\b|\bDISABLED_\w)");
  if (!is_listed(kMayCatchAll, source)) {
    report.add_matching("catch-all", {"catch"}, catch_all,
                        "catch (...) only at a thread's or destructor's edge; list the file in tests/style_rules.cpp");
  }
  const bool is_library = source.path.starts_with("src/") && !source.path.starts_with("src/apps/") && !source.is_test();
  if (is_library && !is_listed(kMayPrint, source)) {
    report.add_matching("print", {"std::c", "print", "put"}, print,
                        "a library does not print; return it, throw it or log it (base/log.h)");
  }
  if (!is_listed(kMaySkip, source)) {
    report.add_matching("skip", {"SKIP", "DISABLED"}, skip,
                        "a test that skips itself needs its reason listed in tests/style_rules.cpp");
  }
}

bool is_word_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

/// Whether one of the words stands in the line as a word of its own.
bool has_word(std::string_view line, const std::vector<std::string_view>& words) {
  return std::any_of(words.begin(), words.end(), [&](std::string_view word) {
    const size_t at = line.find(word);
    if (at == std::string_view::npos) return false;
    const size_t end = at + word.size();
    return (at == 0 || !is_word_character(line[at - 1])) && (end == line.size() || !is_word_character(line[end]));
  });
}

/// Whether an absolute path that begins with one of the roots stands in the line.
bool has_path(std::string_view line, const std::vector<std::string_view>& roots) {
  return std::any_of(roots.begin(), roots.end(), [&](std::string_view root) {
    const size_t at = line.find(root);
    if (at == std::string_view::npos) return false;
    return at == 0 || std::string_view(" \t\"'`(=:").find(line[at - 1]) != std::string_view::npos;
  });
}

bool names_foreign_host(const std::string& line) {
  static const std::regex url(R"re(https?://([^/\\\s"'`)>:]+|\[[^\]]*\]))re");
  for (std::sregex_iterator match(line.begin(), line.end(), url), end; match != end; ++match) {
    const std::string host = (*match)[1];
    if (std::find(kHostsAllowed.begin(), kHostsAllowed.end(), host) == kHostsAllowed.end()) return true;
  }
  return false;
}

void check_words(const SourceText& source, Report& report) {
  static const std::vector<std::string_view> unfinished = {"TODO", "FIXME", "XXX", "HACK"};
  static const std::vector<std::string_view> machine_roots = {"/home/", "/root/", "/work/", "/Users/", "/mnt/"};
  if (is_listed(kNamesTheWords, source)) return;
  for (size_t i = 0; i < source.lines.size(); ++i) {
    const std::string& line = source.lines[i];
    if (has_word(line, unfinished)) {
      report.add(i, "unfinished", "finish it, or state the limit in docs/");
    }
    if (line.find("http") != std::string::npos && names_foreign_host(line))
      report.add(i, "host", "no address of a host in the sources");
    if (has_path(line, machine_roots)) report.add(i, "machine-path", "no path of one machine in the sources");
  }
}

}  // namespace

std::vector<Violation> check_style(const SourceText& source) {
  Report report(source);
  const BraceWalk walk = walk_braces(source);
  check_line_length(source, report);
  check_functions(source, walk, report);
  check_using_namespace(source, walk, report);
  check_header(source, report);
  check_includes(source, report);
  check_exceptions_and_output(source, report);
  check_words(source, report);
  return report.take();
}

}  // namespace tidepool
