#include "server/custom_input.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/json.h"

namespace tidepool::responses {
namespace {

std::string read_cut(const std::string& arguments, size_t cut) {
  CustomInputReader reader;
  std::string text = reader.feed(arguments.substr(0, cut));
  text += reader.feed(arguments.substr(cut));
  return text + reader.finish();
}

TEST(CustomInput, IsTheStringOfTheArgumentsHoweverTheyAreCut) {
  for (const std::string arguments :
       {R"({"input": ""})", R"({"input": "a \"b\"\nc\\\/\b\f\r\t"})", R"({"input": "é\u00e9\u4e2d\ud83d\ude00🌃"})",
        R"({"input": "half \ud83d pair \ude00, twice \ud83d\ud83d\ude00 \ud83d"})"}) {
    const std::string expected = parse_json(arguments).find("input")->as_string();
    for (size_t cut = 0; cut <= arguments.size(); ++cut)
      EXPECT_EQ(read_cut(arguments, cut), expected) << cut;
  }
}

TEST(CustomInput, ComesAsItIsWrittenAndNoEscapeIsHalved) {
  CustomInputReader reader;
  EXPECT_EQ(reader.feed(R"({"inp)"), "");
  EXPECT_EQ(reader.feed(R"(ut": "first)"), "first");
  EXPECT_EQ(reader.feed("\\"), "");
  EXPECT_EQ(reader.feed("n\\u00"), "\n");
  EXPECT_EQ(reader.feed("e9 last"), "é last");
  EXPECT_EQ(reader.feed(R"("})"), "");
  EXPECT_EQ(reader.finish(), "");
}

TEST(CustomInput, WhatIsCutShortGoesAsFarAsItCame) {
  CustomInputReader reader;
  EXPECT_EQ(reader.feed(R"({"input": "as far\u00)"), "as far");
  EXPECT_EQ(reader.finish(), "");
}

TEST(CustomInput, OtherArgumentsAreTheText) {
  for (const std::string arguments :
       {R"({"file": 1})", R"({"input": 3})", R"({"input": )", "", R"({"input": ["a"]})", "no JSON"}) {
    for (size_t cut = 0; cut <= arguments.size(); ++cut)
      EXPECT_EQ(read_cut(arguments, cut), arguments) << cut;
  }
  const std::string laid_out = R"({ "file": 1, "input" : "text" })";
  EXPECT_EQ(read_cut(laid_out, 9), "text");
}

}  // namespace
}  // namespace tidepool::responses
