#include "model/fingerprint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/temp_folder.h"
#include "model/golden_test_support.h"

namespace tidepool {
namespace {

/// A copy of the tiny checkpoint that a test may change.
class FingerprintTest : public testing::Test {
 protected:
  FingerprintTest() {
    for (const auto& file : std::filesystem::directory_iterator(golden::folder() / "ckpt"))
      if (file.is_regular_file()) std::filesystem::copy(file.path(), folder_.path());
  }
  [[nodiscard]] Digest fingerprint(const ModelOptions& options = {}) const {
    return model_fingerprint(golden::load_model_from(folder_.path(), options));
  }
  const TempFolder folder_;
};

TEST_F(FingerprintTest, CopyOfACheckpointIsTheSameModel) {
  EXPECT_EQ(fingerprint(), model_fingerprint(golden::load_model("ckpt")));
}

TEST_F(FingerprintTest, OtherCheckpointsDiffer) {
  EXPECT_NE(fingerprint(), model_fingerprint(golden::load_model("ckpt_textonly")));
}

TEST_F(FingerprintTest, OneFlippedBitOfASmallTensorShows) {
  const Digest before = fingerprint();
  for (const auto& file : std::filesystem::directory_iterator(folder_.path())) {
    if (file.path().extension() != ".safetensors") continue;
    const SafetensorsFile tensors(file.path());
    const SafetensorsFile::Entry* norm = tensors.find("norm.weight");
    if (norm == nullptr) continue;
    std::fstream stream(file.path(), std::ios::binary | std::ios::in | std::ios::out);
    uint64_t header_bytes = 0;
    stream.read(reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes));
    stream.seekp(static_cast<std::streamoff>(sizeof(header_bytes) + header_bytes + norm->begin + 2));
    stream.put('\x01');
  }
  EXPECT_NE(fingerprint(), before);
}

TEST_F(FingerprintTest, ConfigShows) {
  const Digest before = fingerprint();
  std::string config = read_file(folder_ / "config.json", 1 << 20);
  const size_t at = config.find("\"swiglu_limit\": 2.5");
  ASSERT_NE(at, std::string::npos);
  config.replace(at, 19, "\"swiglu_limit\": 2.4");
  std::ofstream(folder_ / "config.json") << config;
  EXPECT_NE(fingerprint(), before);
}

TEST_F(FingerprintTest, NumericsAndRowFormatsShow) {
  const Digest before = fingerprint();
  EXPECT_NE(fingerprint({.numerics = kHpNumerics, .kv_formats = {}, .faults = {}}), before);
  EXPECT_NE(fingerprint({.numerics = {}, .kv_formats = {.entry = RowFormat::kFloat32}, .faults = {}}), before);
}

TEST_F(FingerprintTest, TokenMapOfEngramShows) {
  std::vector<int32_t> map = golden::token_map();
  std::swap(map[10], map[11]);
  const Model other(Checkpoint::open(folder_.path()), std::move(map));
  EXPECT_NE(model_fingerprint(other), fingerprint());
}

}  // namespace
}  // namespace tidepool
