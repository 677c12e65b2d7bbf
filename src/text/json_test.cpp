#include "text/json.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"

namespace tidepool {
namespace {

std::string rewrite(std::string_view text) {
  return write_json(parse_json(text));
}

std::string parse_refusal(std::string_view text, const JsonParseOptions& options = {}) {
  try {
    (void)parse_json(text, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Json, WritesTheReferenceSeparatorsAndKeepsKeyOrder) {
  EXPECT_EQ(rewrite(" {\"b\":1,\"a\":[ 2,true ,null],\"c\":{}} "), R"({"b": 1, "a": [2, true, null], "c": {}})");
  EXPECT_EQ(rewrite("[]"), "[]");
}

TEST(Json, RepeatedKeyKeepsFirstPlaceAndLastValue) {
  EXPECT_EQ(rewrite(R"({"a":1,"b":2,"a":3})"), R"({"a": 3, "b": 2})");
}

TEST(Json, RepeatedKeysAreFoundInLargeObjectsToo) {
  std::string text = "{";
  std::string expected = "{";
  for (int i = 0; i < 100; ++i) {
    text += "\"k" + std::to_string(i) + "\":0,";
    expected += (i > 0 ? ", \"k" : "\"k") + std::to_string(i) + "\": " + (i == 3 ? "7" : i == 99 ? "8" : "0");
  }
  EXPECT_EQ(rewrite(text + "\"k3\":7,\"k99\":8}"), expected + "}");
}

TEST(Json, IntegersKeepAllDigits) {
  EXPECT_EQ(rewrite("[123456789012345678901234567890,-0,0,-5]"), "[123456789012345678901234567890, 0, 0, -5]");
  EXPECT_EQ(parse_json("9223372036854775807").try_int64(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(parse_json("9223372036854775808").try_int64(), std::nullopt);
  EXPECT_EQ(parse_json("1.0").try_int64(), std::nullopt);
}

TEST(Json, RealsAreShortestWithExponentOutsideMinusFourTo15) {
  EXPECT_EQ(shortest_real(100.0), "100.0");
  EXPECT_EQ(shortest_real(0.1), "0.1");
  EXPECT_EQ(shortest_real(0.0001), "0.0001");
  EXPECT_EQ(shortest_real(0.00001), "1e-05");
  EXPECT_EQ(shortest_real(1e15), "1000000000000000.0");
  EXPECT_EQ(shortest_real(1e16), "1e+16");
  EXPECT_EQ(shortest_real(123456.75), "123456.75");
  EXPECT_EQ(shortest_real(1.5e-7), "1.5e-07");
  EXPECT_EQ(shortest_real(-0.0), "-0.0");
  EXPECT_EQ(shortest_real(std::numeric_limits<double>::max()), "1.7976931348623157e+308");
  EXPECT_EQ(shortest_real(std::numeric_limits<double>::denorm_min()), "5e-324");
}

TEST(Json, RealsReadBackTheSame) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    const auto value = std::bit_cast<double>(random());
    if (!std::isfinite(value)) continue;
    EXPECT_EQ(std::bit_cast<uint64_t>(parse_json(shortest_real(value)).as_double()), std::bit_cast<uint64_t>(value));
  }
}

TEST(Json, NumbersBeyondBinary64SaturateByTheirMagnitude) {
  EXPECT_EQ(parse_json("1e400").as_double(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(parse_json("-1e400").as_double(), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(parse_json("1e-400").as_double(), 0.0);
  EXPECT_EQ(parse_json("0." + std::string(400, '0') + "1").as_double(), 0.0);
  EXPECT_EQ(parse_json(std::string(400, '9') + ".0").as_double(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(parse_json("1e99999999999999999999").as_double(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(parse_json("1e-99999999999999999999").as_double(), 0.0);
  EXPECT_EQ(parse_json("0e99999999999999999999").as_double(), 0.0);
}

TEST(Json, NonFiniteNamesNeedTheOption) {
  EXPECT_EQ(write_json(parse_json("[NaN,Infinity,-Infinity]", {.allows_nonfinite = true})),
            "[NaN, Infinity, -Infinity]");
  EXPECT_NE(parse_refusal("NaN"), "accepted");
  EXPECT_NE(parse_refusal("-Infinity"), "accepted");
}

TEST(Json, EscapesOnlyQuoteBackslashAndControls) {
  EXPECT_EQ(rewrite(R"("\u4f60\ud83d\ude00\/\u007f\u2028\u0001\u001f\b\f\n\r\t\"\\")"),
            "\"你😀/\x7f\xe2\x80\xa8\\u0001\\u001f\\b\\f\\n\\r\\t\\\"\\\\\"");
}

TEST(Json, HalfSurrogatePairsBecomeReplacementCharacters) {
  EXPECT_EQ(parse_json(R"("a\ud83db")").as_string(),
            "a\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(parse_json(R"("\ude00\ud83d\u0041")").as_string(),
            "\xEF\xBF\xBD\xEF\xBF\xBD"
            "A");
  EXPECT_EQ(parse_json(R"("\ud83d\ud83d\ude00")").as_string(), "\xEF\xBF\xBD😀");
}

TEST(Json, ErrorsNameTheByte) {
  EXPECT_EQ(parse_refusal(""), "JSON, byte 0: the text ends where a value is expected");
  EXPECT_EQ(parse_refusal("{\"a\" 1}"), "JSON, byte 5: expected ':' after the key");
  EXPECT_EQ(parse_refusal("[1 2]"), "JSON, byte 3: expected ',' or ']' in an array");
  EXPECT_EQ(parse_refusal("1 x"), "JSON, byte 2: text after the end of the value");
  EXPECT_EQ(parse_refusal("\"a\nb\""), "JSON, byte 2: control character inside a string; write it as an escape");
  EXPECT_EQ(parse_refusal("\"\xC0\x80\""), "JSON, byte 1: a string is not valid UTF-8");
}

TEST(Json, DepthAndSizeAreLimited) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(parse_refusal(nested(257)), "accepted");  // 257 arrays: the innermost lies 256 levels deep
  EXPECT_NE(parse_refusal(nested(258)), "accepted");
  EXPECT_NE(parse_refusal("[1,2]", {.bytes_max = 4}), "accepted");
  EXPECT_EQ(parse_refusal("[1,2]", {.bytes_max = 5}), "accepted");
}

// Texts near valid JSON, from edits of a seed text: ours and a library must agree about what is JSON, apart from what
// ours accepts on purpose (halves of surrogate pairs, numbers beyond binary64), which these edits cannot make.
TEST(Json, AcceptsWhatALibraryAccepts) {
  const std::string seed =
      "{\"a\": [1, -2.5e-3, true, null], \"\\u00e9\\n\": {\"b\": \"x\xC3\xA9\"}, \"c\": [], \"d\": 0.1}";
  const std::string alphabet = "{}[]:,\"\\ 0123456789.eE+-truefalsn\xC3\xA9\n";
  std::mt19937 random(7);
  size_t accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = seed;
    for (uint64_t edits = random() % 3; edits > 0; --edits) {
      const size_t at = random() % text.size();
      if (random() % 2 == 0) {
        text.erase(at, 1 + random() % 4);
      } else {
        text.insert(at, 1, alphabet[random() % alphabet.size()]);
      }
    }
    const bool library = nlohmann::json::accept(text);
    accepted += library ? 1 : 0;
    ASSERT_EQ(parse_refusal(text) == "accepted", library) << text;
    if (library) {
      ASSERT_EQ(nlohmann::json::parse(rewrite(text)), nlohmann::json::parse(text)) << text;
    }
  }
  EXPECT_GT(accepted, 5000U);
}

}  // namespace
}  // namespace tidepool
