#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "formats/checkpoint.h"
#include "formats/golden_test_util.h"

namespace tidepool {
namespace {

struct Total {
  uint64_t count = 0;
  uint64_t bytes = 0;
  friend bool operator==(const Total&, const Total&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Total& total) {
    return out << total.count << " / " << total.bytes;
  }
};

std::vector<ExpectedTensor> released_tensors() {
  return expected_tensors(load_config(kGolden / "released_config.json"));
}

TEST(ExpectedTensors, AreTheReleasedOnesToTheByte) {
  std::map<Dtype, Total> totals;
  Total all;
  for (const ExpectedTensor& tensor : released_tensors()) {
    const uint64_t bytes = tensor_bytes(tensor.dtype, tensor.shape).value();
    for (Total* total : {&totals[tensor.dtype], &all}) {
      ++total->count;
      total->bytes += bytes;
    }
  }
  // The published totals. (docs/formats.md)
  EXPECT_EQ(all, (Total{96085, 510286023000}));
  EXPECT_EQ(totals[Dtype::kBf16], (Total{520, 3952883712}));
  EXPECT_EQ(totals[Dtype::kF32], (Total{387, 169229128}));
  EXPECT_EQ(totals[Dtype::kF8E4m3], (Total{357, 204015223296}));
  EXPECT_EQ(totals[Dtype::kF8E8m0], (Total{47589, 23563015184}));
  EXPECT_EQ(totals[Dtype::kI8], (Total{47232, 278585671680}));
  EXPECT_EQ(totals.size(), 5U);
}

TEST(ExpectedTensors, HaveDistinctNames) {
  std::set<std::string> names;
  for (const ExpectedTensor& tensor : released_tensors())
    EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
}

TEST(ExpectedTensors, BelongToTheirParts) {
  std::map<std::string, ExpectedTensor::Part> parts;
  for (const ExpectedTensor& tensor : released_tensors())
    parts[tensor.name] = tensor.part;
  EXPECT_EQ(parts.at("layers.20.attn.compressor.wkv.weight"), ExpectedTensor::Part::kBackbone);
  EXPECT_EQ(parts.at("layers.14.engram.embed.scale"), ExpectedTensor::Part::kEngram);
  EXPECT_EQ(parts.at("mtp.2.confidence_head.proj.weight"), ExpectedTensor::Part::kDspark);
  EXPECT_EQ(parts.at("mtp.0.ffn.gate.bias_vl"), ExpectedTensor::Part::kDspark);
  EXPECT_EQ(parts.at("layers.0.ffn.gate.bias_vl"), ExpectedTensor::Part::kVision);
  EXPECT_EQ(parts.at("image_newline"), ExpectedTensor::Part::kVision);
  EXPECT_FALSE(parts.contains("layers.20.attn.compressor.wgate.weight"));  // ratio 1 has no gate
}

TEST(ExpectedTensors, HaveTheReleasedShapes) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (ExpectedTensor& tensor : released_tensors())
    shapes[tensor.name] = std::move(tensor.shape);
  using Shape = std::vector<int64_t>;
  // One of each kind of the table. (docs/formats.md)
  EXPECT_EQ(shapes.at("layers.0.hc_ffn_fn"), (Shape{24, 20480}));
  EXPECT_EQ(shapes.at("layers.39.attn.wo_a.weight"), (Shape{8192, 4096}));
  EXPECT_EQ(shapes.at("layers.39.attn.wo_a.scale"), (Shape{256, 128}));
  EXPECT_EQ(shapes.at("layers.7.ffn.experts.383.w2.weight"), (Shape{5120, 1152}));
  EXPECT_EQ(shapes.at("layers.7.ffn.experts.383.w2.scale"), (Shape{5120, 72}));
  EXPECT_EQ(shapes.at("mtp.1.ffn.gate.weight"), (Shape{128, 5120}));
  EXPECT_EQ(shapes.at("layers.1.engram.embed.weight"), (Shape{384006168, 256}));
  EXPECT_EQ(shapes.at("layers.1.engram.embed.scale"), (Shape{384006168, 8}));
  EXPECT_EQ(shapes.at("layers.1.engram.wkv.weight"), (Shape{25600, 6144}));
  EXPECT_EQ(shapes.at("mtp.0.main_proj.weight"), (Shape{5120, 15360}));
  EXPECT_EQ(shapes.at("vision.patch_embed.proj.weight"), (Shape{1024, 588}));
  EXPECT_EQ(shapes.at("aligner.w1.weight"), (Shape{5120, 9216}));
}

}  // namespace
}  // namespace tidepool
