#include <fmt/format.h>

#include <chrono>
#include <string_view>

#include "bench/suite_internal.h"
#include "model/vision.h"

namespace tidepool::bench {
namespace {

/// Blocks of the released tower; the cut model has fewer.
constexpr double kReleasedBlocks = 32;

/// When each stage of the tower ended.
class StageClock final : public Probe {
 public:
  using Clock = std::chrono::steady_clock;

  bool wants(std::string_view) override { return false; }
  void record(std::string_view name, int64_t, int64_t, Span2d<const float>) override {
    const Clock::time_point now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    (name == "vit_embed" ? patches : name == "aligner_out" ? aligner : blocks) += seconds;
    last_ = now;
  }
  void record_ints(std::string_view, int64_t, int64_t, std::span<const int64_t>) override {}

  double patches = 0;
  double blocks = 0;
  double aligner = 0;

 private:
  Clock::time_point last_ = Clock::now();
};

/// Additions and multiplications of one picture: every matrix, and attention's two products.
double tower_operations(const Model& model, const ImagePlan& plan) {
  const VisionWeights& weights = *model.weights().vision;
  const auto size = [](const MatrixView& matrix) { return static_cast<double>(matrix.out * matrix.in); };
  const auto patches = static_cast<double>(plan.patches());
  const auto cells = static_cast<double>(plan.cell_rows * plan.cell_columns);
  double sum = patches * size(weights.patch_embed.weight);
  for (const VisionBlockWeights& block : weights.blocks) {
    sum += patches * (size(block.wqkv.weight) + size(block.wo.weight) + size(block.w1) + size(block.w2));
    sum += 2 * patches * patches * static_cast<double>(block.wo.weight.in);
  }
  sum += cells * (size(weights.aligner_w1.weight) + size(weights.aligner_w2.weight));
  return 2 * sum;
}

/// All weights of the tower, BF16: what it must read at least.
double tower_bytes(const Model& model) {
  const VisionWeights& weights = *model.weights().vision;
  const auto size = [](const MatrixView& matrix) { return static_cast<double>(matrix.out * matrix.in); };
  double sum = size(weights.patch_embed.weight) + size(weights.aligner_w1.weight) + size(weights.aligner_w2.weight);
  for (const VisionBlockWeights& block : weights.blocks)
    sum += size(block.wqkv.weight) + size(block.wo.weight) + size(block.w1) + size(block.w2);
  return sizeof(Bf16) * sum;
}

}  // namespace

Result vision_cut4(const Workbench& bench, const Model& model) {
  constexpr size_t kSide = 1008;
  const PreparedImage image =
      prepare_image(image_plan_config(*model.config().vision), RgbImage(kSide, kSide, 99), "picture");
  const PreparedImage* pointer = &image;
  StageClock clock;  // its run is the warm-up of the one that counts
  (void)encode_images(model, bench.runtime(), {&pointer, 1}, &clock);
  Result result = against_peak(bench, {.shape = "",
                                       .repeats = 1,
                                       .warm_ups = 0,
                                       .bytes = tower_bytes(model),
                                       .operations = tower_operations(model, image.plan),
                                       .run = [&] {
                                         (void)encode_images(model, bench.runtime(), {&pointer, 1});
                                       }});
  const double clocked = clock.patches + clock.blocks + clock.aligner;
  result.split = {
      {"patches", clock.patches / clocked}, {"blocks", clock.blocks / clocked}, {"aligner", clock.aligner / clocked}};
  const auto blocks = static_cast<double>(model.weights().vision->blocks.size());
  const double seconds = tower_operations(model, image.plan) / (result.median * 1e9);
  const double whole = seconds * (1 + result.split[1].second * (kReleasedBlocks / blocks - 1));
  result.shape = fmt::format(
      "a picture of {} x {} through {} blocks and the aligner; {:.0f} blocks: {:.0f} ms per 1,000 image tokens", kSide,
      kSide, blocks, kReleasedBlocks, whole * 1e6 / static_cast<double>(image.plan.tokens()));
  return result;
}

}  // namespace tidepool::bench
