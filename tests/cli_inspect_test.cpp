#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "base/temp_folder.h"
#include "cli_program.h"
#include "formats/standin.h"

namespace tidepool {
namespace {

using testing::HasSubstr;

/// The released checkpoint without its weights.
class CliInspectReleased : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_folder = std::make_unique<TempFolder>();
    write_standin(golden("released_config.json"), shared_folder->path());
  }
  static void TearDownTestSuite() { shared_folder.reset(); }

  static std::string folder() { return shared_folder->path().string(); }

 private:
  inline static std::unique_ptr<TempFolder> shared_folder;
};

/// The published figures: 552B, 196B, 14.2B and 0.485B parameters, 890 bytes of KV a token.
TEST_F(CliInspectReleased, ShowsThePublishedFigures) {
  const ProgramResult result = run_tidepool({"inspect", folder()});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, testing::ContainsRegex("backbone +552B"));
  EXPECT_THAT(result.out, testing::ContainsRegex("Engram tables +196.6B"));
  EXPECT_THAT(result.out, HasSubstr("552B and 196B of Engram memory"));
  EXPECT_THAT(result.out, testing::ContainsRegex("DSpark +14.2B"));
  EXPECT_THAT(result.out, testing::ContainsRegex("vision +0.485B"));
  EXPECT_THAT(result.out, testing::ContainsRegex("KV of a token +890 bytes"));
  EXPECT_THAT(result.out, testing::ContainsRegex("KV of 131,072 +116.7 MB"));
  EXPECT_THAT(result.out, testing::ContainsRegex("KV of 1,048,576 +933.2 MB"));
}

/// Totals as published with the release: parameters, tensors and bytes, overall and by type.
TEST_F(CliInspectReleased, CountsWhatWasReleased) {
  const Json report = run_tidepool({"inspect", folder(), "--json"}).json();
  int64_t parameters = 0;
  for (const Json& part : at(report, "parts").as_array())
    parameters += at(part, "parameters").try_int64().value();
  EXPECT_EQ(parameters, 763'205'315'794);
  EXPECT_EQ(at(report, "tensors").try_int64(), 96'085);
  EXPECT_EQ(at(at(report, "memory"), "weight_bytes").try_int64(), 510'286'023'000);
  std::map<std::string, int64_t> bytes;
  for (const Json& dtype : at(report, "dtypes").as_array())
    bytes[at(dtype, "dtype").as_string()] = at(dtype, "bytes").try_int64().value();
  EXPECT_EQ(bytes, (std::map<std::string, int64_t>{{"BF16", 3'952'883'712},
                                                   {"F32", 169'229'128},
                                                   {"F8_E4M3", 204'015'223'296},
                                                   {"F8_E8M0", 23'563'015'184},
                                                   {"I8", 278'585'671'680}}));
  EXPECT_EQ(at(at(report, "memory"), "kv_bytes_per_token").try_int64(), 890);
}

TEST_F(CliInspectReleased, ShowsHowEachLayerAttends) {
  const Json report = run_tidepool({"inspect", folder(), "--json"}).json();
  const Json::Array& layers = at(report, "layers").as_array();
  ASSERT_EQ(layers.size(), 40U);
  EXPECT_EQ(write_json(layers[1]),
            R"({"layer": 1, "mode": "window", "ratio": 0, "kv_source": null, "index_source": null, )"
            R"("candidates": null, "engram_rows": 384006168, "half": "encoder"})");
  EXPECT_EQ(write_json(layers[24]),
            R"({"layer": 24, "mode": "reindex", "ratio": 1, "kv_source": 20, "index_source": 24, )"
            R"("candidates": "uses", "engram_rows": null, "half": "decoder"})");
}

TEST(CliInspect, ShowsATinyModelToo) {
  const ProgramResult result = run_tidepool({"inspect", golden("ckpt")});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("All weights fit in the available memory"));
  EXPECT_THAT(result.out, testing::ContainsRegex("kernels +[a-z0-9]+ on [0-9]+ threads"));
}

TEST(CliInspect, PartsThatAreAbsentAreNotShown) {
  const ProgramResult result = run_tidepool({"inspect", golden("ckpt_textonly")});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, testing::Not(HasSubstr("DSpark")));
  EXPECT_THAT(result.out, testing::Not(HasSubstr("vision")));
}

TEST(CliInspect, NeedsNoTokenizerAndNamesUnknownKeys) {
  const TempFolder folder;
  for (const auto& entry : std::filesystem::directory_iterator(golden("ckpt"))) {
    const std::string name = entry.path().filename();
    if (name != "config.json" && name != "tokenizer.json") std::filesystem::create_symlink(entry.path(), folder / name);
  }
  std::ifstream source(golden("ckpt/config.json"));
  std::string config{std::istreambuf_iterator<char>(source), std::istreambuf_iterator<char>()};
  config.insert(config.find('{') + 1, R"("colour": "blue",)");
  std::ofstream(folder / "config.json") << config;
  const ProgramResult result = run_tidepool({"inspect", folder.path().string()});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, testing::ContainsRegex("unknown key +/colour"));
}

TEST(CliInspect, ChosenKernelsAndThreadsAreShown) {
  const Json kernels =
      at(run_tidepool({"inspect", golden("ckpt"), "--isa", "reference", "--threads", "3", "--json"}).json(), "kernels");
  EXPECT_EQ(at(kernels, "chosen").as_string(), "reference");
  EXPECT_EQ(at(kernels, "threads").try_int64(), 3);
  EXPECT_NE(at(kernels, "amx").as_string(), "");
}

}  // namespace
}  // namespace tidepool
