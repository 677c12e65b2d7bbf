#include "formats/standin.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/temp_folder.h"
#include "formats/checkpoint.h"
#include "formats/golden_test_util.h"
#include "formats/safetensors.h"

namespace tidepool {
namespace {

std::map<std::string, std::string> weight_map(const std::filesystem::path& folder) {
  return nlohmann::json::parse(read_file(folder / "model.safetensors.index.json", 1 << 20)).at("weight_map");
}

// The golden checkpoint has the released grouping, so its stand-in must have the same index.
TEST(Standin, GroupsTensorsAsTheReleaseDoes) {
  const TempFolder folder;
  write_standin(kGolden / "ckpt" / "config.json", folder.path());
  EXPECT_EQ(weight_map(folder.path()), weight_map(kGolden / "ckpt"));
}

TEST(Standin, OpensLikeTheCheckpointItStandsFor) {
  const TempFolder folder;
  write_standin(kGolden / "ckpt" / "config.json", folder.path());
  const auto standin = Checkpoint::open(folder.path())->tensors();
  const auto original = Checkpoint::open(kGolden / "ckpt")->tensors();
  ASSERT_EQ(standin.size(), original.size());
  for (size_t i = 0; i < standin.size(); ++i) {
    EXPECT_EQ(standin[i].name, original[i].name);
    EXPECT_EQ(standin[i].shape, original[i].shape);
    EXPECT_EQ(standin[i].bytes, original[i].bytes);
    EXPECT_EQ(standin[i].part, original[i].part);
  }
}

TEST(Standin, AbsentPartsHaveNoShard) {
  const TempFolder folder;
  write_standin(kGolden / "ckpt_textonly" / "config.json", folder.path());
  EXPECT_FALSE(Checkpoint::open(folder.path())->has_part(ExpectedTensor::Part::kVision));
  // Embedding, three layers, norm and head.
  EXPECT_TRUE(std::filesystem::exists(folder / "model-00005-of-00005.safetensors"));
}

TEST(Standin, WritesOverAnOldOne) {
  const TempFolder folder;
  write_standin(kGolden / "ckpt" / "config.json", folder.path());
  write_standin(kGolden / "ckpt" / "config.json", folder.path());
  EXPECT_NO_THROW((void)Checkpoint::open(folder.path()));
}

}  // namespace
}  // namespace tidepool
