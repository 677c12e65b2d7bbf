#include "formats/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/temp_folder.h"
#include "formats/golden_test_util.h"
#include "formats/safetensors.h"

namespace tidepool {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::ordered_json;
using Part = ExpectedTensor::Part;

constexpr const char* kIndex = "model.safetensors.index.json";

/// A copy of a golden checkpoint that a test may damage.
class CheckpointCopy {
 public:
  explicit CheckpointCopy(const char* name) {
    for (const auto& entry : std::filesystem::directory_iterator(kGolden / name)) {
      std::filesystem::copy(entry.path(), folder_.path() / entry.path().filename());
    }
  }

  [[nodiscard]] const std::filesystem::path& path() const { return folder_.path(); }

  /// Writes `file` anew with its tensors changed by `edit`.
  void edit(const std::string& file, const std::function<void(std::vector<TensorToWrite>&)>& edit) {
    const SafetensorsFile before(folder_ / file);
    std::vector<TensorToWrite> tensors;
    for (const auto& entry : before.entries()) {
      const TensorView view = before.tensor(entry);
      tensors.push_back({entry.name, entry.dtype, entry.shape, {view.data, view.bytes}});
    }
    edit(tensors);
    write_safetensors(folder_ / file, tensors);
  }

  void edit_json(const std::string& file, const std::function<void(Json&)>& edit) {
    Json json = Json::parse(read_file(folder_ / file, 1 << 20));
    edit(json);
    write_file_atomically(folder_ / file, json.dump(1));
  }

  [[nodiscard]] std::string shard_of(const std::string& tensor) const {
    return Json::parse(read_file(folder_ / kIndex, 1 << 20)).at("weight_map").at(tensor);
  }

  [[nodiscard]] Error error() const {
    try {
      (void)Checkpoint::open(folder_.path());
    } catch (const Error& error) {
      return error;
    }
    return {ErrorCode::kCancelled, "no error at all"};
  }

 private:
  TempFolder folder_;
};

void remove_named(std::vector<TensorToWrite>& tensors, const std::string& prefix) {
  std::erase_if(tensors, [&](const TensorToWrite& tensor) { return tensor.name.starts_with(prefix); });
}

TensorToWrite& named(std::vector<TensorToWrite>& tensors, const std::string& name) {
  for (TensorToWrite& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  throw std::runtime_error("no " + name);
}

constexpr const char* kSingle = "model.safetensors";

TEST(Checkpoint, OpensTheGoldenShards) {
  const auto checkpoint = Checkpoint::open(kGolden / "ckpt");
  EXPECT_TRUE(checkpoint->has_part(Part::kEngram));
  EXPECT_TRUE(checkpoint->has_part(Part::kDspark));
  EXPECT_TRUE(checkpoint->has_part(Part::kVision));
  EXPECT_EQ(checkpoint->folder(), kGolden / "ckpt");
  uint64_t bytes = 0;
  for (const auto& tensor : checkpoint->tensors())
    bytes += tensor.bytes;
  EXPECT_EQ(bytes, 6138140U);  // metadata.total_size of its index
}

TEST(Checkpoint, OpensTheGoldenSingleFile) {
  const auto checkpoint = Checkpoint::open(kGolden / "ckpt_textonly");
  EXPECT_TRUE(checkpoint->has_part(Part::kBackbone));
  EXPECT_FALSE(checkpoint->has_part(Part::kEngram));
  EXPECT_FALSE(checkpoint->has_part(Part::kDspark));
  EXPECT_FALSE(checkpoint->has_part(Part::kVision));
  EXPECT_TRUE(checkpoint->has("layers.0.attn.attn_sink"));
  EXPECT_FALSE(checkpoint->has("layers.0.ffn.gate.bias_vl"));
}

TEST(Checkpoint, GivesMatricesInTheirFormats) {
  const auto checkpoint = Checkpoint::open(kGolden / "ckpt");
  const MatrixView fp8 = checkpoint->matrix("layers.0.attn.wq_a");
  EXPECT_EQ(fp8.format, MatrixFormat::kFp8Tile32);
  EXPECT_EQ(fp8.out, 64U);
  EXPECT_EQ(fp8.in, 192U);
  EXPECT_NE(fp8.scales, nullptr);
  const MatrixView fp4 = checkpoint->matrix("layers.3.ffn.experts.7.w2");
  EXPECT_EQ(fp4.format, MatrixFormat::kFp4Block32);
  EXPECT_EQ(fp4.out, 192U);
  EXPECT_EQ(fp4.in, 64U);
  const MatrixView bf16 = checkpoint->matrix("embed");
  EXPECT_EQ(bf16.format, MatrixFormat::kBf16);
  EXPECT_EQ(bf16.out, 512U);
  EXPECT_EQ(bf16.scales, nullptr);
  const MatrixView f32 = checkpoint->matrix("layers.0.hc_attn_fn");
  EXPECT_EQ(f32.format, MatrixFormat::kFloat32);
  EXPECT_EQ(f32.in, 768U);
}

TEST(Checkpoint, TellsOfTheEngramTableByTensor) {
  const auto checkpoint = Checkpoint::open(kGolden / "ckpt");
  checkpoint->advise("layers.1.engram.embed.weight", MappedFile::Access::kRandom);
  EXPECT_EQ(checkpoint->tensor("layers.1.engram.embed.weight").shape, (std::vector<int64_t>{384, 32}));
  EXPECT_EQ(checkpoint->tensor("layers.1.engram.embed.scale").shape, (std::vector<int64_t>{384, 1}));
}

TEST(CheckpointDeathTest, AskingForWhatIsNotThereIsABug) {
  const auto checkpoint = Checkpoint::open(kGolden / "ckpt");
  EXPECT_DEATH((void)checkpoint->tensor("nobody"), "no tensor nobody");
  EXPECT_DEATH((void)checkpoint->matrix("norm"), "norm is not a matrix");
  EXPECT_DEATH((void)checkpoint->matrix("layers.1.engram.embed"), "a table, to be read by tensor");
}

TEST(Checkpoint, OpensAHubCacheFolder) {
  // hub/snapshots/REVISION/name -> ../../blobs/HASH
  const TempFolder hub;
  std::filesystem::create_directories(hub / "blobs");
  std::filesystem::create_directories(hub / "snapshots/dba1be0a");
  size_t number = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kGolden / "ckpt")) {
    const std::string blob = std::to_string(number++);
    std::filesystem::copy(entry.path(), hub / ("blobs/" + blob));
    std::filesystem::create_symlink("../../blobs/" + blob, hub / "snapshots/dba1be0a" / entry.path().filename());
  }
  EXPECT_NO_THROW((void)Checkpoint::open(hub / "snapshots/dba1be0a"));
}

TEST(Checkpoint, TakesU8ForPackedCodes) {
  CheckpointCopy copy("ckpt_textonly");
  copy.edit(kSingle, [](auto& tensors) {
    for (TensorToWrite& tensor : tensors) {
      if (tensor.dtype == Dtype::kI8) tensor.dtype = Dtype::kU8;
    }
  });
  const auto checkpoint = Checkpoint::open(copy.path());
  EXPECT_EQ(checkpoint->matrix("layers.0.ffn.experts.0.w1").format, MatrixFormat::kFp4Block32);
}

// ---- Folders ----

TEST(CheckpointFolder, MustBeAFolderWithAConfig) {
  const TempFolder folder;
  const auto message_of = [](const std::filesystem::path& path) -> std::string {
    try {
      (void)Checkpoint::open(path);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kNotFound);
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message_of(folder / "nowhere"), HasSubstr("not a folder; point at a downloaded model folder"));
  EXPECT_THAT(message_of(kGolden / "ckpt" / "config.json"), HasSubstr("not a folder"));
  EXPECT_THAT(message_of(folder.path()), HasSubstr("config.json: cannot open"));
  std::filesystem::copy(kGolden / "ckpt" / "config.json", folder / "config.json");
  EXPECT_THAT(message_of(folder.path()), HasSubstr("neither model.safetensors.index.json nor model.safetensors"));
}

TEST(CheckpointFolder, AMissingShardIsNamed) {
  CheckpointCopy copy("ckpt");
  std::filesystem::remove(copy.path() / "model-00005-of-00016.safetensors");
  EXPECT_THAT(copy.error().what(),
              AllOf(HasSubstr("1 files named by model.safetensors.index.json are missing"),
                    HasSubstr("model-00005-of-00016.safetensors"), HasSubstr("download it again")));
}

TEST(CheckpointFolder, ADanglingLinkIsAMissingShard) {
  CheckpointCopy copy("ckpt");
  std::filesystem::remove(copy.path() / "model-00005-of-00016.safetensors");
  std::filesystem::create_symlink("../blobs/gone", copy.path() / "model-00005-of-00016.safetensors");
  EXPECT_THAT(copy.error().what(), HasSubstr("are missing"));
}

TEST(CheckpointFolder, ACutShardIsNamed) {
  CheckpointCopy copy("ckpt");
  std::filesystem::resize_file(copy.path() / "model-00005-of-00016.safetensors", 300000);
  EXPECT_THAT(copy.error().what(), AllOf(HasSubstr("model-00005-of-00016.safetensors: tensor"), HasSubstr("cut off")));
}

TEST(CheckpointFolder, AShardThatLacksItsTensorIsNamed) {
  CheckpointCopy copy("ckpt");
  copy.edit(copy.shard_of("norm.weight"), [](auto& tensors) { remove_named(tensors, "norm.weight"); });
  EXPECT_THAT(copy.error().what(),
              AllOf(HasSubstr("1 tensors disagree with model.safetensors.index.json"),
                    HasSubstr("norm.weight: model-00011-of-00016.safetensors lacks it, where the index says it is")));
}

TEST(CheckpointFolder, ATensorTheIndexDoesNotNameIsNamed) {
  CheckpointCopy copy("ckpt");
  copy.edit_json(kIndex, [](Json& index) { index["weight_map"].erase("norm.weight"); });
  EXPECT_THAT(copy.error().what(), HasSubstr("norm.weight: in model-00011-of-00016.safetensors, but not in the index"));
}

TEST(CheckpointFolder, ATensorInAnotherShardThanTheIndexSaysIsNamed) {
  CheckpointCopy copy("ckpt");
  copy.edit_json(kIndex, [](Json& index) { index["weight_map"]["norm.weight"] = "model-00001-of-00016.safetensors"; });
  EXPECT_THAT(copy.error().what(), HasSubstr("norm.weight: model-00001-of-00016.safetensors lacks it"));
}

TEST(CheckpointFolder, ATensorInTwoShardsIsNamed) {
  CheckpointCopy copy("ckpt");
  const std::vector<std::byte> data(384);
  copy.edit("model-00001-of-00016.safetensors", [&](auto& tensors) {
    tensors.push_back({"norm.weight", Dtype::kBf16, {192}, data});
  });
  EXPECT_THAT(copy.error().what(), HasSubstr("norm.weight: in model-00001-of-00016.safetensors and "
                                             "model-00011-of-00016.safetensors"));
}

TEST(CheckpointFolder, AnIndexMayNotLeaveTheFolder) {
  for (const char* shard : {"../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", "a\\b"}) {
    CheckpointCopy copy("ckpt");
    copy.edit_json(kIndex, [&](Json& index) { index["weight_map"]["norm.weight"] = shard; });
    EXPECT_THAT(copy.error().what(), HasSubstr("is not a file name (tensor \"norm.weight\")")) << shard;
  }
}

TEST(CheckpointFolder, ABadIndexIsRefused) {
  const std::pair<const char*, const char*> bad[] = {
      {"{", "not JSON"},
      {"{}", "weight_map is missing or not an object"},
      {R"({"weight_map":[]})", "weight_map is missing or not an object"},
      {R"({"weight_map":{"a":1}})", "the file of \"a\" is not a string"},
      {R"({"weight_map":{"a":"x","a":"x"}})", "names tensor \"a\" twice"},
  };
  CheckpointCopy copy("ckpt");
  for (const auto& [text, said] : bad) {
    write_file_atomically(copy.path() / kIndex, text);
    EXPECT_EQ(copy.error().code(), ErrorCode::kCorrupt);
    EXPECT_THAT(copy.error().what(), AllOf(HasSubstr("model.safetensors.index.json: "), HasSubstr(said)));
  }
}

// ---- Tensors against the config ----

TEST(CheckpointTensors, MissingOnesAreListed) {
  CheckpointCopy copy("ckpt_textonly");
  copy.edit(kSingle, [](auto& tensors) { remove_named(tensors, "layers.1.attn.compressor.norm"); });
  EXPECT_THAT(copy.error().what(), AllOf(HasSubstr("1 tensors do not fit config.json"),
                                         HasSubstr("missing: layers.1.attn.compressor.norm.weight (BF16 [64])")));
}

TEST(CheckpointTensors, ExtraOnesAreListed) {
  CheckpointCopy copy("ckpt_textonly");
  const std::vector<std::byte> data(4);
  copy.edit(kSingle, [&](auto& tensors) {
    tensors.push_back({"zzz", Dtype::kF32, {1}, data});
    tensors.push_back({"model.norm.weight", Dtype::kF32, {1}, data});
    tensors.push_back({"layers.0.attn.wkv.weight_scale_inv", Dtype::kF32, {1}, data});
  });
  EXPECT_THAT(copy.error().what(),
              AllOf(HasSubstr("3 tensors do not fit"), HasSubstr("extra: zzz (F32 [1])"),
                    HasSubstr("extra: model.norm.weight (F32 [1]) (a converted packaging"),
                    HasSubstr("weight_scale_inv (F32 [1]) (an older packaging: the release has .scale)")));
}

TEST(CheckpointTensors, MisShapedOnesSayExpectedAndFound) {
  CheckpointCopy copy("ckpt_textonly");
  copy.edit(kSingle, [](auto& tensors) { named(tensors, "norm.weight").shape = {96, 1}; });
  EXPECT_THAT(copy.error().what(), HasSubstr("mis-shaped: norm.weight: expected BF16 [96], found BF16 [96,1]"));
}

TEST(CheckpointTensors, AWrongDtypeIsMisShaped) {
  CheckpointCopy copy("ckpt_textonly");
  copy.edit(kSingle, [](auto& tensors) { named(tensors, "norm.weight").dtype = Dtype::kF16; });
  EXPECT_THAT(copy.error().what(), HasSubstr("mis-shaped: norm.weight: expected BF16 [96], found F16 [96]"));
}

TEST(CheckpointTensors, ScalesOf128x128TilesAreRecognised) {
  CheckpointCopy copy("ckpt_textonly");
  copy.edit(kSingle, [](auto& tensors) {
    // wq_b [256, 64]: tiles of 32 give [8, 2], tiles of 128 give [2, 1].
    TensorToWrite& scale = named(tensors, "layers.0.attn.wq_b.scale");
    scale.shape = {2, 1};
    scale.data = scale.data.first(2);
  });
  EXPECT_THAT(copy.error().what(),
              HasSubstr("layers.0.attn.wq_b.scale: expected F8_E8M0 [8,2], found F8_E8M0 [2,1] (scales of 128x128 "
                        "tiles, as DeepSeek-V4 has them; V4.1 has 32x32)"));
}

TEST(CheckpointTensors, OnlyTwentyAreListed) {
  CheckpointCopy copy("ckpt_textonly");
  copy.edit(kSingle, [](auto& tensors) { remove_named(tensors, "layers.2.ffn.experts."); });
  const std::string message = copy.error().what();
  // 4 experts, 3 matrices each, weight and scale.
  EXPECT_THAT(message, AllOf(HasSubstr("24 tensors do not fit"), HasSubstr("and 4 more")));
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 22);
}

/// Removes tensors from the shards and from the index alike.
void remove_everywhere(CheckpointCopy& copy, const std::vector<std::string>& prefixes) {
  for (const auto& entry : std::filesystem::directory_iterator(copy.path())) {
    if (entry.path().extension() != ".safetensors") continue;
    copy.edit(entry.path().filename(), [&](auto& tensors) {
      for (const std::string& prefix : prefixes)
        remove_named(tensors, prefix);
    });
  }
  copy.edit_json(kIndex, [&](Json& index) {
    Json kept = Json::object();
    for (const auto& [name, shard] : index["weight_map"].items()) {
      const bool is_removed = std::any_of(prefixes.begin(), prefixes.end(),
                                          [&name = name](const auto& prefix) { return name.starts_with(prefix); });
      if (!is_removed) kept[name] = shard;
    }
    index["weight_map"] = kept;
  });
}

TEST(CheckpointParts, TheDraftHeadMayBeLeftOut) {
  CheckpointCopy copy("ckpt");
  remove_everywhere(copy, {"mtp."});
  const auto checkpoint = Checkpoint::open(copy.path());
  EXPECT_FALSE(checkpoint->has_part(Part::kDspark));
  EXPECT_FALSE(checkpoint->config().dspark);
  EXPECT_EQ(checkpoint->config().compress_ratios.size(), 8U);
  EXPECT_TRUE(checkpoint->has_part(Part::kVision));
}

TEST(CheckpointParts, PartOfTheDraftHeadIsAnError) {
  CheckpointCopy copy("ckpt");
  remove_everywhere(copy, {"mtp.1."});
  EXPECT_THAT(copy.error().what(), HasSubstr("missing: mtp.1.attn.attn_sink"));
}

TEST(CheckpointParts, TheVisionTowerMayBeLeftOutWithItsBiases) {
  CheckpointCopy copy("ckpt");
  std::vector<std::string> prefixes = {"vision.", "aligner.", "image_"};
  for (int i = 0; i < 8; ++i)
    prefixes.push_back("layers." + std::to_string(i) + ".ffn.gate.bias_vl");
  for (int i = 0; i < 3; ++i)
    prefixes.push_back("mtp." + std::to_string(i) + ".ffn.gate.bias_vl");
  remove_everywhere(copy, prefixes);
  const auto checkpoint = Checkpoint::open(copy.path());
  EXPECT_FALSE(checkpoint->has_part(Part::kVision));
  EXPECT_FALSE(checkpoint->config().vision);
}

TEST(CheckpointParts, PartOfTheVisionTowerIsAnError) {
  CheckpointCopy copy("ckpt");
  remove_everywhere(copy, {"vision.", "aligner.", "image_"});
  EXPECT_THAT(copy.error().what(), HasSubstr("extra: layers.0.ffn.gate.bias_vl"));
}

TEST(CheckpointParts, EngramMayNotBeLeftOut) {
  CheckpointCopy copy("ckpt");
  remove_everywhere(copy, {"layers.1.engram.", "layers.2.engram."});
  EXPECT_THAT(copy.error().what(), AllOf(HasSubstr("12 tensors do not fit"),
                                         HasSubstr("missing: layers.1.engram.embed.weight (F8_E4M3 [384,32])")));
}

}  // namespace
}  // namespace tidepool
