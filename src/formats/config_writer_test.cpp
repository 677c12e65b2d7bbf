#include "formats/config_writer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"

namespace tidepool {
namespace {

constexpr uint64_t kConfigBytesMax = uint64_t{1} << 20;

/// Every key of `a` that `b` has too says the same there.
void expect_same_values(const nlohmann::json& a, const nlohmann::json& b, const std::string& place) {
  for (const auto& [key, value] : a.items()) {
    if (!b.contains(key)) continue;
    if (value.is_object()) {
      expect_same_values(value, b[key], place + "/" + key);
    } else {
      EXPECT_EQ(value, b[key]) << place << "/" << key;
    }
  }
}

class ConfigWriter : public testing::TestWithParam<const char*> {};

TEST_P(ConfigWriter, WritesWhatWasRead) {
  const std::string path = std::string(TIDEPOOL_GOLDEN_DIR) + "/" + GetParam();
  const std::string written = write_config(load_config(path));
  // Written and read again it is written the same, and every key says what the original says.
  EXPECT_EQ(write_config(parse_config(written, "written")), written);
  const auto original = nlohmann::json::parse(read_file(path, kConfigBytesMax));
  const auto again = nlohmann::json::parse(written);
  expect_same_values(original, again, "");
  for (const auto& [key, value] : again.items())
    EXPECT_TRUE(original.contains(key)) << key;
  for (const auto& [key, value] : again["text_config"].items())
    EXPECT_TRUE(original["text_config"].contains(key)) << key;
}

INSTANTIATE_TEST_SUITE_P(Golden, ConfigWriter,
                         testing::Values("ckpt/config.json", "ckpt_textonly/config.json", "released_config.json"));

}  // namespace
}  // namespace tidepool
