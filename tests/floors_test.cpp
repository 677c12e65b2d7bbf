// A folder below src/ includes only from floors below it (docs/architecture.md).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "floor_rule.h"
#include "source_text.h"

namespace tidepool {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::vector<Violation> check_one(const std::string& path, const std::string& text) {
  return check_floors({make_source_text(path, text)});
}

TEST(Floors, NoIncludeInThisProjectRunsUpward) {
  const std::vector<SourceText> sources = load_source_tree(TIDEPOOL_SOURCE_DIR, {"src"});
  ASSERT_FALSE(sources.empty());
  EXPECT_EQ(describe(check_floors(sources)), "");
}

TEST(Floors, TableIsTheOneInTheArchitecturePage) {
  std::ifstream page(fs::path(TIDEPOOL_SOURCE_DIR) / "docs/architecture.md");
  ASSERT_TRUE(page) << "docs/architecture.md is missing";
  const std::regex row(R"(^\| (\d+) \| `(\w+)/` \|.*)");
  std::vector<std::pair<std::string, int>> documented;
  for (std::string line; std::getline(page, line);) {
    std::smatch match;
    if (std::regex_match(line, match, row)) documented.emplace_back(match[2], std::stoi(match[1]));
  }
  const std::vector<std::pair<std::string, int>> checked(floor_table().begin(), floor_table().end());
  EXPECT_EQ(documented, checked);
}

TEST(Floors, DownwardAndOwnIncludesAreFine) {
  EXPECT_TRUE(
      check_one("src/kv/page.h", "#include \"kv/entry.h\"\n#include \"base/error.h\"\n#include <vector>\n").empty());
}

TEST(Floors, AnUpwardIncludeIsNamedWithFileLineAndBothFloors) {
  const std::vector<Violation> violations =
      check_one("src/base/error.h", "#pragma once\n\n#include \"formats/fp8.h\"\n");
  ASSERT_EQ(violations.size(), 1U);
  EXPECT_EQ(violations[0].path, "src/base/error.h");
  EXPECT_EQ(violations[0].line, 3U);
  EXPECT_THAT(violations[0].message, HasSubstr("base/ must not include \"formats/fp8.h\""));
}

TEST(Floors, NeighboursOfOneHeightDoNotIncludeEachOther) {
  EXPECT_EQ(check_one("src/engine/step.cpp", "#include \"text/tokenizer.h\"\n").size(), 1U);
  EXPECT_EQ(check_one("src/server/http.cpp", "#include \"train/loss.h\"\n").size(), 1U);
}

TEST(Floors, TextKnowsNoTensors) {
  EXPECT_TRUE(check_one("src/text/bpe.cpp", "#include \"base/error.h\"\n").empty());
  EXPECT_EQ(check_one("src/text/bpe.cpp", "#include \"formats/fp8.h\"\n").size(), 1U);
}

TEST(Floors, AnIncludeWithoutItsFloorIsRefused) {
  EXPECT_THAT(describe(check_one("src/base/error.cpp", "#include \"error.h\"\n")), HasSubstr("write \"floor/x.h\""));
  EXPECT_THAT(describe(check_one("src/kv/page.cpp", "#include <base/error.h>\n")), HasSubstr("in quotes"));
}

TEST(Floors, AFolderOutsideTheTableIsRefused) {
  EXPECT_THAT(describe(check_one("src/misc/x.h", "")), HasSubstr("src/misc is not in the table"));
}

TEST(Floors, CommentsAndSpacingDoNotMatter) {
  EXPECT_TRUE(check_one("src/base/a.h", "// #include \"kv/page.h\"\n/*\n#include \"kv/page.h\"\n*/\n").empty());
  EXPECT_EQ(check_one("src/base/a.h", "  #  include \"kv/page.h\"\n").size(), 1U);
}

TEST(Floors, AWrongTreeOnDiskFails) {
  const fs::path root = fs::path(testing::TempDir()) / "tidepool_floors_wrong_tree";
  fs::remove_all(root);
  fs::create_directories(root / "src/model");
  std::ofstream(root / "src/model/layer.h") << "#pragma once\n#include \"engine/sequence.h\"\n";
  std::ofstream(root / "src/model/layer.cpp") << "#include \"model/layer.h\"\n#include \"kv/page.h\"\n";
  const std::vector<Violation> violations = check_floors(load_source_tree(root, {"src"}));
  fs::remove_all(root);
  ASSERT_EQ(violations.size(), 1U) << describe(violations);
  EXPECT_EQ(violations[0].path, "src/model/layer.h");
  EXPECT_EQ(violations[0].line, 2U);
}

}  // namespace
}  // namespace tidepool
