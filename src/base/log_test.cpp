#include "base/log.h"

#include <gtest/gtest.h>

namespace tidepool {
namespace {

/// Puts the level back to silence whatever the test does.
class Log : public testing::Test {
 protected:
  void TearDown() override { set_log_level(LogLevel::kOff); }
};

TEST_F(Log, IsSilentUnlessAsked) {
  testing::internal::CaptureStderr();
  log_error("lost");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(Log, WritesTheLevelAskedForAndAbove) {
  set_log_level(LogLevel::kWarning);
  testing::internal::CaptureStderr();
  log_debug("one");
  log_info("two");
  log_warning("three {}", 3);
  log_error("four");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find("two"), std::string::npos);
  EXPECT_NE(text.find("warning three 3\n"), std::string::npos);
  EXPECT_NE(text.find("error four\n"), std::string::npos);
}

TEST_F(Log, ForgesNoLines) {
  set_log_level(LogLevel::kInfo);
  testing::internal::CaptureStderr();
  log_info("{}", "a\nb\x1b[31m{}");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("a\\x0ab\\x1b[31m{}\n"), std::string::npos) << text;
}

TEST(Printable, ShowsControlCharactersAndCutsAtCharacters) {
  EXPECT_EQ(printable("plain"), "plain");
  EXPECT_EQ(printable(std::string_view("a\0b\x7f", 4)), "a\\x00b\\x7f");
  EXPECT_EQ(printable("abcdef", 3), "abc...");
  EXPECT_EQ(printable("abc", 3), "abc");
  // An "ä" (two bytes) that does not fit is left out whole.
  EXPECT_EQ(printable("ab\xc3\xa4"
                      "c",
                      3),
            "ab...");
  // U+009B, a control character that begins a terminal's commands.
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b");
}

}  // namespace
}  // namespace tidepool
