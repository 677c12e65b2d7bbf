#include "apps/line_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/log.h"

namespace tidepool {
namespace {

TEST(LineFile, AppendsLines) {
  const std::string path = testing::TempDir() + "line_file_test.jsonl";
  std::filesystem::remove(path);
  LineFile(path).write("one\n");
  LineFile(path).write("two\n");
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_EQ(text.str(), "one\ntwo\n");
  std::filesystem::remove(path);
}

TEST(LineFile, NamesAFileThatCannotBeOpened) {
  try {
    const LineFile file("/nowhere/at/all.jsonl");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_THAT(error.what(), testing::HasSubstr("/nowhere/at/all.jsonl"));
  }
}

TEST(LineFile, AFullDiskIsSaidOnceAndEndsNothing) {
  LineFile file("/dev/full");
  set_log_level(LogLevel::kWarning);
  testing::internal::CaptureStderr();
  file.write("lost\n");
  const std::string first = testing::internal::GetCapturedStderr();
  testing::internal::CaptureStderr();
  file.write("lost too\n");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  set_log_level(LogLevel::kOff);
  EXPECT_THAT(first, testing::HasSubstr("/dev/full takes no line"));
}

}  // namespace
}  // namespace tidepool
