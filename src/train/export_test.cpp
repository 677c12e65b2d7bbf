#include "train/export.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/file.h"
#include "base/temp_folder.h"
#include "formats/checkpoint.h"
#include "formats/fp4.h"
#include "formats/fp8.h"

namespace tidepool {
namespace {

std::string golden(const std::string& name) {
  return std::string(TIDEPOOL_GOLDEN_DIR) + "/" + name;
}

std::string tokenizer_of(const std::filesystem::path& folder) {
  constexpr uint64_t kMost = uint64_t{1} << 28U;
  return read_file(folder / "tokenizer.json", kMost);
}

ParameterSet<float> parameters_of(const Checkpoint& checkpoint) {
  ParameterSet<float> set(checkpoint.config());
  load_parameters(checkpoint, set);
  return set;
}

std::span<const std::byte> bytes_of(const TensorView& tensor) {
  return {tensor.data, tensor.bytes};
}

bool is_same(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.shape == b.shape && std::ranges::equal(bytes_of(a), bytes_of(b));
}

TEST(Export, GoldenValuesComeBackBitForBit) {
  const auto checkpoint = Checkpoint::open(golden("ckpt"));
  const TempFolder folder;
  const ParameterSet<float> set = parameters_of(*checkpoint);
  export_model({checkpoint->config(), tokenizer_of(golden("ckpt")), folder.path(), 300'000}, set);
  const auto exported = Checkpoint::open(folder.path());
  const ParameterSet<float> again = parameters_of(*exported);
  for (size_t i = 0; i < set.all().size(); ++i) {
    const Value<float>& a = set.all()[i].value;
    const Value<float>& b = again.all()[i].value;
    for (size_t row = 0; row < a.rows(); ++row) {
      for (size_t col = 0; col < a.cols(); ++col) {
        ASSERT_EQ(std::bit_cast<uint32_t>(a.data.at(row, col)), std::bit_cast<uint32_t>(b.data.at(row, col)))
            << set.all()[i].name;
      }
    }
  }
}

TEST(Export, TensorsWithoutScalesHaveTheGoldenBytes) {
  const auto checkpoint = Checkpoint::open(golden("ckpt"));
  const TempFolder folder;
  export_model({checkpoint->config(), tokenizer_of(golden("ckpt")), folder.path()}, parameters_of(*checkpoint));
  const auto exported = Checkpoint::open(folder.path());
  size_t compared = 0;
  for (const Checkpoint::TensorInfo& tensor : checkpoint->tensors()) {
    if (tensor.dtype != Dtype::kBf16 && tensor.dtype != Dtype::kF32) continue;
    EXPECT_TRUE(is_same(checkpoint->tensor(tensor.name), exported->tensor(tensor.name))) << tensor.name;
    ++compared;
  }
  EXPECT_GT(compared, 100U);
}

/// A block of 32 FP4 codes whose scale is the smallest that saturates nothing: one with a code above 3 in magnitude.
bool is_canonical(std::span<const std::byte> codes) {
  return std::ranges::any_of(codes, [](std::byte pair) {
    const auto bits = static_cast<uint8_t>(pair);
    return std::fabs(to_float(E2m1{static_cast<uint8_t>(bits & 15U)})) > 3 ||
           std::fabs(to_float(E2m1{static_cast<uint8_t>(bits >> 4U)})) > 3;
  });
}

TEST(Export, ExpertBlocksHaveTheGoldenBytesWhereTheirScaleIsTheSmallestPossible) {
  // Which scale a block of values had before it was rounded cannot be seen where a smaller one holds them too.
  const auto checkpoint = Checkpoint::open(golden("ckpt"));
  const TempFolder folder;
  export_model({checkpoint->config(), tokenizer_of(golden("ckpt")), folder.path()}, parameters_of(*checkpoint));
  const auto exported = Checkpoint::open(folder.path());
  constexpr size_t kBlockBytes = 16;
  size_t compared = 0;
  size_t blocks = 0;
  for (const Checkpoint::TensorInfo& tensor : checkpoint->tensors()) {
    if (tensor.dtype != Dtype::kI8) continue;
    const std::string scale = tensor.name.substr(0, tensor.name.size() - 6) + "scale";
    const auto codes = bytes_of(checkpoint->tensor(tensor.name));
    const auto new_codes = bytes_of(exported->tensor(tensor.name));
    for (size_t block = 0; block * kBlockBytes < codes.size(); ++block) {
      ++blocks;
      const auto part = codes.subspan(block * kBlockBytes, kBlockBytes);
      if (!is_canonical(part)) continue;
      ++compared;
      ASSERT_TRUE(std::ranges::equal(part, new_codes.subspan(block * kBlockBytes, kBlockBytes))) << tensor.name;
      ASSERT_EQ(checkpoint->tensor(scale).data[block], exported->tensor(scale).data[block]) << tensor.name;
    }
  }
  EXPECT_GT(compared, blocks / 2);
}

TEST(Export, AnExportedModelIsExportedToTheSameBytes) {
  const auto checkpoint = Checkpoint::open(golden("ckpt"));
  const TempFolder first;
  const TempFolder second;
  export_model({checkpoint->config(), tokenizer_of(golden("ckpt")), first.path(), 500'000}, parameters_of(*checkpoint));
  const auto exported = Checkpoint::open(first.path());
  export_model({exported->config(), tokenizer_of(first.path()), second.path(), 500'000}, parameters_of(*exported));
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(first.path())) {
    constexpr uint64_t kMost = uint64_t{1} << 28U;
    EXPECT_EQ(read_file(entry.path(), kMost), read_file(second.path() / entry.path().filename(), kMost));
    ++files;
  }
  EXPECT_GT(files, 10U);  // several shards, the index, config.json and tokenizer.json
}

TEST(Export, ShardsStayWithinTheirLimit) {
  const auto checkpoint = Checkpoint::open(golden("ckpt_textonly"));
  const TempFolder folder;
  constexpr uint64_t kLimit = 400'000;
  export_model({checkpoint->config(), tokenizer_of(golden("ckpt_textonly")), folder.path(), kLimit},
               parameters_of(*checkpoint));
  constexpr uint64_t kHeaderMost = 60'000;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (entry.path().extension() == ".safetensors") {
      EXPECT_LE(std::filesystem::file_size(entry.path()), kLimit + kHeaderMost);
    }
  }
}

}  // namespace
}  // namespace tidepool
