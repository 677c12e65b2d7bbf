// The rules of docs/style.md that a program can check, over all C++ files of the project, and each rule on a sample
// that breaks it.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "source_text.h"
#include "style_rules.h"

namespace tidepool {
namespace {

/// The rules that a file breaks, as "line rule", in the order of the checks.
std::vector<std::string> broken(const std::string& path, const std::string& text) {
  std::vector<std::string> result;
  for (const Violation& violation : check_style(make_source_text(path, text))) {
    result.push_back(std::to_string(violation.line) + " " + violation.rule);
  }
  return result;
}

using Rules = std::vector<std::string>;

std::string function_of_lines(size_t lines) {
  std::string text = "void work() {\n";
  for (size_t i = 2; i < lines; ++i)
    text += "  step();\n";
  return text + "}\n";
}

TEST(Tidy, ThisProjectFollowsItsRules) {
  const std::vector<SourceText> sources = load_source_tree(TIDEPOOL_SOURCE_DIR, {"src", "tests", "bench", "tools"});
  ASSERT_FALSE(sources.empty());
  std::vector<Violation> violations;
  for (const SourceText& source : sources) {
    for (Violation& violation : check_style(source))
      violations.push_back(std::move(violation));
  }
  EXPECT_EQ(describe(violations), "");
}

TEST(Tidy, ViolationsNameFileLineAndRule) {
  EXPECT_EQ(describe(check_style(make_source_text("src/base/a.cpp", "\nusing namespace std;\n"))),
            "src/base/a.cpp:2: using-namespace: no `using namespace` at file scope; name what is used\n");
}

TEST(Tidy, LinesEndAtColumn120CountedInCharacters) {
  EXPECT_EQ(broken("src/base/a.cpp", "// " + std::string(117, 'x') + "\n"), Rules{});
  EXPECT_EQ(broken("src/base/a.cpp", "\n// " + std::string(118, 'x') + "\n"), Rules{"2 line-length"});
  std::string two_bytes_each = "// ";
  for (int i = 0; i < 117; ++i)
    two_bytes_each += "\u00e9";
  EXPECT_EQ(broken("src/base/a.cpp", two_bytes_each), Rules{});
}

TEST(Tidy, AFunctionHasAtMost70LinesAndAKernel150) {
  EXPECT_EQ(broken("src/base/a.cpp", function_of_lines(70)), Rules{});
  EXPECT_EQ(broken("src/base/a.cpp", "\n" + function_of_lines(71)), Rules{"2 function-length"});
  EXPECT_EQ(broken("src/kernels/a.cpp", function_of_lines(150)), Rules{});
  EXPECT_EQ(broken("src/kernels/a.cpp", function_of_lines(151)), Rules{"1 function-length"});
  EXPECT_EQ(broken("src/kernels/a_test.cpp", function_of_lines(71)), Rules{"1 function-length"});
}

TEST(Tidy, LongFunctionsAreFoundWhereverTheyStand) {
  const std::string long_body = function_of_lines(71).substr(std::string("void work()").size());
  const std::vector<std::string> heads = {
      "TEST(Suite, Claim)",
      "namespace a {\nstruct S {\n  S() : a_{1}, b_(2)",
      "class C : public B {\n public:\n  int f() const",
      "template <typename T>\nrequires(sizeof(T) == 4) T f(const T& x) noexcept",
      "auto f(int x) -> std::vector<int>",
      "bool operator==(const A& a, const A& b)",
      "const auto f = [](int x)",
      "void f(Options options = {})",
  };
  for (const std::string& head : heads) {
    const std::string closing = head.starts_with("namespace") ? "};\n}\n" : head.starts_with("class") ? "};\n" : "";
    const Rules rules = broken("src/base/a.cpp", head + long_body + closing);
    ASSERT_EQ(rules.size(), 1U) << head;
    EXPECT_TRUE(rules[0].ends_with(" function-length")) << head << rules[0];
  }
}

TEST(Tidy, LongTypesTablesAndNamespacesAreNotFunctions) {
  const std::string lines = function_of_lines(40);
  EXPECT_EQ(broken("src/base/a.cpp", "namespace a {\n" + lines + lines + "}\n"), Rules{});
  EXPECT_EQ(broken("src/base/a.cpp", "class alignas(64) A {\n" + lines + lines + "};\n"), Rules{});
  std::string table = "constexpr std::array<int, count(2)> kTable = {\n";
  for (int i = 0; i < 100; ++i)
    table += "    1,\n";
  EXPECT_EQ(broken("src/base/a.cpp", table + "};\n"), Rules{});
}

TEST(Tidy, BracesInLiteralsAndCommentsDoNotCount) {
  EXPECT_EQ(broken("src/base/a.cpp", "const char* a = \"{\";\nchar b = '{';  // {\n/* { */\nint c = 1'000;\n"),
            Rules{});
  EXPECT_EQ(broken("src/base/a.cpp", "const char* a = R\"(\"{)\";\nconst char* b = R\"x({)\")x\";\n"), Rules{});
  EXPECT_EQ(broken("src/base/a.cpp", "void f() {\n"), Rules{"1 function-length"});
}

TEST(Tidy, CatchAllOnlyWhereListed) {
  const std::string text = "void f() {\n  try {\n    g();\n  } catch (...) {\n  }\n}\n";
  EXPECT_EQ(broken("src/kv/a.cpp", text), Rules{"4 catch-all"});
  EXPECT_EQ(broken("src/base/thread_pool.cpp", text), Rules{});
}

TEST(Tidy, UsingNamespaceOnlyInsideFunctions) {
  EXPECT_EQ(broken("src/base/a.cpp", "namespace tidepool {\nusing namespace std;\n}\n"), Rules{"2 using-namespace"});
  EXPECT_EQ(broken("src/base/a.cpp", "void f() {\n  using namespace std::literals;\n}\n"), Rules{});
}

TEST(Tidy, HeadersBeginWithPragmaOnce) {
  EXPECT_EQ(broken("src/base/a.h", "#include <vector>\n"), Rules{"1 pragma-once"});
  EXPECT_EQ(broken("src/base/a.h", "// What this holds.\n#pragma once\n"), Rules{});
  EXPECT_EQ(broken("src/base/a.cpp", "#include <vector>\n"), Rules{});
}

TEST(Tidy, HeavyHeadersStayOutOfHeaders) {
  for (const std::string name : {"nlohmann/json.hpp", "simdjson.h", "spdlog/spdlog.h"}) {
    const std::string include = "#pragma once\n#include <" + name + ">\n";
    EXPECT_EQ(broken("src/text/a.h", include), Rules{"2 heavy-header"}) << name;
    EXPECT_EQ(broken("src/text/a.cpp", include), Rules{}) << name;
  }
  EXPECT_EQ(broken("src/text/a.h", "#pragma once\n#include <nlohmann/json_fwd.hpp>\n"), Rules{"2 heavy-header"});
}

TEST(Tidy, IntrinsicsOnlyInFilesOfOneInstructionSet) {
  const std::string include = "#include <immintrin.h>\n";
  EXPECT_EQ(broken("src/kernels/matmul_avx512.cpp", include), Rules{});
  EXPECT_EQ(broken("src/kernels/matmul_avx2.cpp", include), Rules{});
  EXPECT_EQ(broken("src/kernels/matmul.cpp", include), Rules{"1 intrinsics"});
  EXPECT_EQ(broken("src/model/matmul_avx2.cpp", include), Rules{"1 intrinsics"});
  EXPECT_EQ(broken("src/kernels/matmul_avx2.cpp", "#include \"kernels/lanes_avx2.h\"\n"), Rules{});
  EXPECT_EQ(broken("src/kernels/matmul.cpp", "#include \"kernels/lanes_avx2.h\"\n"), Rules{"1 intrinsics"});
}

TEST(Tidy, LibrariesDoNotPrint) {
  for (const std::string call : {"std::cout << 1;", "std::cerr << 1;", "std::printf(\"\");", "fprintf(stderr, \"\");",
                                 "puts(\"\");", "fmt::print(\"\");"}) {
    EXPECT_EQ(broken("src/kv/a.cpp", "void f() { " + call + " }\n"), Rules{"1 print"}) << call;
    EXPECT_EQ(broken("src/apps/a.cpp", "void f() { " + call + " }\n"), Rules{}) << call;
  }
  EXPECT_EQ(broken("src/kv/a.cpp", "void f() { snprintf(a, 1, \"\"); }\n"), Rules{});
}

TEST(Tidy, TestsDoNotSkipThemselves) {
  EXPECT_EQ(broken("src/kv/a_test.cpp", "TEST(A, B) { GTEST_SKIP() << \"no\"; }\n"), Rules{"1 skip"});
  EXPECT_EQ(broken("src/kv/a_test.cpp", "TEST(A, DISABLED_B) {}\n"), Rules{"1 skip"});
}

TEST(Tidy, NothingIsLeftUnfinished) {
  EXPECT_EQ(broken("src/kv/a.cpp", "\n// TODO: later\n"), Rules{"2 unfinished"});
  EXPECT_EQ(broken("src/kv/a.cpp", "// FIXME\n"), Rules{"1 unfinished"});
}

TEST(Tidy, SourcesNameNoHostAndNoMachine) {
  EXPECT_EQ(broken("src/kv/a.cpp", "// see https://files.internal/x\n"), Rules{"1 host"});
  EXPECT_EQ(broken("src/kv/a.cpp", "// http://localhost:8080/ and http://127.0.0.1/ and http://example.com\n"),
            Rules{});
  EXPECT_EQ(broken("src/kv/a.cpp", "const char* path = \"/home/someone/model\";\n"), Rules{"1 machine-path"});
}

}  // namespace
}  // namespace tidepool
