// The vision tower and image spans in the backbone, against the golden case of two images between pieces of text.
#include "model/vision.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "image/resize.h"
#include "model/golden_test_support.h"

namespace tidepool {
namespace {

/// Keeps what is recorded, by "name.layer".
class VisionCollector final : public Probe {
 public:
  bool wants(std::string_view) override { return false; }
  void record(std::string_view name, int64_t layer, int64_t, Span2d<const float> values) override {
    std::vector<float>& all = floats[std::string(name) + "." + std::to_string(layer)];
    for (size_t row = 0; row < values.rows; ++row)
      all.insert(all.end(), values.row(row).begin(), values.row(row).end());
  }
  void record_ints(std::string_view name, int64_t layer, int64_t index, std::span<const int64_t> values) override {
    ints[std::string(name) + "." + std::to_string(layer)][index] = {values.begin(), values.end()};
  }

  std::map<std::string, std::vector<float>> floats;
  std::map<std::string, std::map<int64_t, std::vector<int64_t>>> ints;
};

RgbImage read_rgb(const golden::Case& c, const std::string& name) {
  const std::vector<int64_t> shape = c.shape(name);
  RgbImage image(static_cast<size_t>(shape[1]), static_cast<size_t>(shape[0]));
  std::ranges::transform(c.ints(name), image.pixels.begin(), [](int64_t v) { return static_cast<uint8_t>(v); });
  return image;
}

struct VisionFixture {
  explicit VisionFixture(const ModelOptions& options = {})
      : runtime{pool, kernels::select_kernels("auto", linear_inputs(options.numerics))},
        model(golden::load_model("ckpt", options)) {}

  [[nodiscard]] PreparedImage prepare(const RgbImage& image) const {
    return prepare_image(image_plan_config(*model.config().vision), image, "picture");
  }
  [[nodiscard]] PreparedImage prepare(int index) const {
    return prepare(read_rgb(golden_case, "img" + std::to_string(index) + ".rgb"));
  }

  ThreadPool pool{2};
  Runtime runtime;
  Model model;
  golden::Case golden_case{"image_text"};
};

TEST(GoldenVision, PlansOfBothConfigsAreExact) {
  const golden::Case c("image_plan");
  const std::vector<int64_t> sizes = c.ints("sizes");
  for (const std::string name : {"this_config", "released"}) {
    const std::vector<int64_t> params = c.ints("params." + name);
    const ImagePlanConfig config{params[0], params[1], params[2], params[3]};
    const std::vector<int64_t> plans = c.ints("plan." + name);
    for (size_t i = 0; i < sizes.size() / 2; ++i) {
      const ImagePlan p = plan_image(config, sizes[2 * i], sizes[2 * i + 1]);
      const std::vector<int64_t> actual = {
          p.cell_rows, p.cell_columns, p.canvas_height, p.canvas_width, p.scaled_width, p.scaled_height, p.x, p.y};
      const auto expected = plans.begin() + static_cast<int64_t>(8 * i);
      EXPECT_EQ(actual, std::vector<int64_t>(expected, expected + 8)) << sizes[2 * i] << " x " << sizes[2 * i + 1];
    }
  }
}

TEST(GoldenVision, CanvasIsExact) {
  const VisionFixture fixture;
  EXPECT_TRUE(fixture.prepare(1).canvas == read_rgb(fixture.golden_case, "img1.padded_rgb"));
  // The first picture fits as it is.
  EXPECT_TRUE(fixture.prepare(0).canvas == read_rgb(fixture.golden_case, "img0.rgb"));
}

/// Errors between float64 and official are 0.006 to 0.01 (golden README).
constexpr double kTowerRowError = 0.015;

class Tower : public testing::TestWithParam<Numerics> {};

TEST_P(Tower, EveryStageOfBothPicturesIsWithinTheStatedNoise) {
  const VisionFixture fixture({.numerics = GetParam(), .kv_formats = {}, .faults = {}});
  for (int index = 0; index < 2; ++index) {
    VisionCollector collector;
    const PreparedImage image = fixture.prepare(index);
    const PreparedImage* pointer = &image;
    (void)encode_images(fixture.model, fixture.runtime, {&pointer, 1}, &collector);
    const std::string prefix = "img" + std::to_string(index) + ".";
    for (const auto& [own, recorded] : std::map<std::string, std::string>{{"vit_embed.-1", "vit_embed"},
                                                                          {"vit_block.0", "vit_block.0"},
                                                                          {"vit_block.1", "vit_block.1"},
                                                                          {"vit_out.-1", "vit_out"},
                                                                          {"aligner_out.-1", "aligner_out"}}) {
      const auto rows = static_cast<size_t>(fixture.golden_case.shape(prefix + recorded)[0]);
      const std::vector<double> errors =
          golden::row_errors(collector.floats.at(own), fixture.golden_case.floats(prefix + recorded), rows);
      EXPECT_LE(golden::quantile(errors, 1), kTowerRowError) << prefix << recorded;
      // Most rows are the reference's to the bit; with one rounding point missing (silu's, say) the median is 0.003.
      EXPECT_LE(golden::quantile(errors, 0.5), GetParam().round_to_bf16 ? 0.001 : kTowerRowError) << prefix << recorded;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(GoldenVision, Tower, testing::Values(kOfficialNumerics, kHpNumerics),
                         [](const auto& test) { return test.param.round_to_bf16 ? "official" : "hp"; });

TEST(Vision, PicturesOfABatchDoNotTouchEachOther) {
  const VisionFixture fixture;
  const PreparedImage first = fixture.prepare(0);
  const PreparedImage second = fixture.prepare(1);
  const std::vector<const PreparedImage*> both = {&first, &second, &first};
  const std::vector<VisionFeatures> together = encode_images(fixture.model, fixture.runtime, both);
  ASSERT_EQ(together.size(), 3U);
  for (size_t i = 0; i < both.size(); ++i) {
    const std::vector<VisionFeatures> alone = encode_images(fixture.model, fixture.runtime, {&both[i], 1});
    EXPECT_TRUE(std::ranges::equal(together[i].values.span(), alone[0].values.span())) << i;
  }
}

TEST(Vision, AnyNumberOfThreadsGivesTheSameBits) {
  const VisionFixture fixture;
  const PreparedImage image = fixture.prepare(1);
  const PreparedImage* pointer = &image;
  const std::vector<VisionFeatures> expected = encode_images(fixture.model, fixture.runtime, {&pointer, 1});
  for (const size_t threads : {1U, 3U}) {
    ThreadPool pool(threads);
    const std::vector<VisionFeatures> actual =
        encode_images(fixture.model, {pool, fixture.runtime.kernels}, {&pointer, 1});
    EXPECT_TRUE(std::ranges::equal(actual[0].values.span(), expected[0].values.span()));
  }
}

TEST(Vision, ABatchAboveTheLargestPictureIsCutAndGivesTheSame) {
  const VisionFixture fixture;
  // The budget of 40 tokens allows 333 patches; ten pictures of 42 are cut into two batches.
  const PreparedImage image = fixture.prepare(1);
  const std::vector<const PreparedImage*> many(10, &image);
  const std::vector<VisionFeatures> features = encode_images(fixture.model, fixture.runtime, many);
  ASSERT_EQ(features.size(), 10U);
  for (const VisionFeatures& one : features)
    EXPECT_TRUE(std::ranges::equal(one.values.span(), features[0].values.span()));
}

TEST(Vision, TheSpanHasItsDelimitersInPlace) {
  const VisionFixture fixture;
  const PreparedImage image = fixture.prepare(0);
  const PreparedImage* pointer = &image;
  const std::vector<VisionFeatures> all = encode_images(fixture.model, fixture.runtime, {&pointer, 1});
  const VisionFeatures& features = all.front();
  const VisionWeights& weights = *fixture.model.weights().vision;
  ASSERT_EQ(features.tokens, 10U);  // START, 3 cells, NEWLINE, 3 cells, NEWLINE, END
  for (const auto& [row, learned] : std::map<size_t, const Bf16*>{
           {0, weights.start}, {4, weights.newline}, {8, weights.newline}, {9, weights.end}}) {
    for (size_t i = 0; i < features.hidden; ++i)
      EXPECT_EQ(features.rows().row(row)[i], to_float(learned[i]));
  }
}

/// The golden prompt with its images.
struct Prompt {
  std::vector<InputToken> tokens;
  std::vector<int64_t> starts;
  std::vector<VisionFeatures> features;

  [[nodiscard]] std::vector<ImageRows> rows() const {
    std::vector<ImageRows> result;
    for (size_t i = 0; i < features.size(); ++i)
      result.push_back({starts[i], features[i].rows()});
    return result;
  }
};

Prompt make_prompt(const VisionFixture& fixture) {
  const golden::Case& c = fixture.golden_case;
  Prompt prompt;
  prompt.tokens = c.tokens("input_ids");
  const std::vector<int64_t> types = c.ints("token_types");
  for (size_t i = 0; i < types.size(); ++i)
    prompt.tokens[i].is_image = types[i] >= 0;
  const std::vector<PreparedImage> images = [&] {
    std::vector<PreparedImage> made;
    made.push_back(fixture.prepare(0));
    made.push_back(fixture.prepare(1));
    return made;
  }();
  const std::vector<const PreparedImage*> pointers = {&images[0], &images[1]};
  prompt.features = encode_images(fixture.model, fixture.runtime, pointers);
  prompt.starts = {c.ints("img0.start")[0], c.ints("img1.start")[0]};
  return prompt;
}

/// Logits of every position of the golden case: its prompt in chunks, then its given tokens one at a time.
std::vector<float> run_case(const VisionFixture& fixture, const Prompt& prompt, size_t chunk, Probe* probe = nullptr) {
  Arena arena;
  SequenceState state = fixture.model.new_sequence();
  std::vector<float> all;
  const std::vector<ImageRows> images = prompt.rows();
  const auto run = [&](std::span<const InputToken> tokens) {
    const Arena::Scope scope(arena);
    const ForwardRequest request{&state, tokens, 0, tokens.size(), images};
    const Span2d<const float> logits = forward(fixture.model, fixture.runtime, arena, {&request, 1}, probe);
    all.insert(all.end(), logits.data, logits.data + logits.rows * logits.cols);
  };
  for (size_t begin = 0; begin < prompt.tokens.size(); begin += chunk)
    run(std::span(prompt.tokens).subspan(begin, std::min(chunk, prompt.tokens.size() - begin)));
  for (const InputToken& token : fixture.golden_case.tokens("follow_ids"))
    run({&token, 1});
  return all;
}

std::vector<double> logit_errors(const VisionFixture& fixture, const std::vector<float>& logits,
                                 const std::string& name) {
  return golden::row_errors(logits, fixture.golden_case.floats(name), 39);
}

TEST(GoldenVision, OfficialLogitsAreWithinTheStatedNoise) {
  const VisionFixture fixture;
  const std::vector<float> logits = run_case(fixture, make_prompt(fixture), 33);
  const std::vector<double> errors = logit_errors(fixture, logits, "logits");
  EXPECT_LE(golden::quantile(errors, 0.5), 0.025);
  EXPECT_LE(golden::quantile(errors, 0.9), 0.06);
  const std::vector<float> noise = fixture.golden_case.floats("row_noise");
  for (size_t row = 0; row < errors.size(); ++row)
    EXPECT_LE(errors[row], 0.03 + 3 * static_cast<double>(noise[row])) << row;
}

TEST(GoldenVision, HpLogitsAreWithinTheStatedNoise) {
  const VisionFixture fixture({.numerics = kHpNumerics, .kv_formats = {}, .faults = {}});
  const std::vector<double> errors = logit_errors(fixture, run_case(fixture, make_prompt(fixture), 33), "logits_hp");
  EXPECT_LE(golden::quantile(errors, 0.5), 0.01);
  EXPECT_LE(golden::quantile(errors, 0.9), 0.025);
  EXPECT_LE(golden::quantile(errors, 1), 0.1);
}

TEST(GoldenVision, EmbeddingsHashesGatesAndRoutesAreTheReferences) {
  const VisionFixture fixture;
  const golden::Case& c = fixture.golden_case;
  VisionCollector collector;
  const Prompt prompt = make_prompt(fixture);
  (void)run_case(fixture, prompt, 33, &collector);
  const size_t hidden = fixture.model.pass_shape().hidden;
  std::vector<float> embeddings = collector.floats.at("embed.-1");
  embeddings.resize(33 * hidden);
  EXPECT_LE(golden::quantile(golden::row_errors(embeddings, c.floats("merged_embed"), 33), 1), kTowerRowError);

  const std::vector<int64_t> hashes = c.ints("engram_hash");  // [33, layers, columns]
  for (size_t row = 0; row < 33; ++row) {
    for (size_t slot = 0; slot < 2; ++slot) {
      const auto begin = hashes.begin() + static_cast<int64_t>((row * 2 + slot) * 6);
      EXPECT_EQ(collector.ints.at("engram_hash." + std::to_string(slot)).at(static_cast<int64_t>(row)),
                std::vector<int64_t>(begin, begin + 6))
          << "position " << row << ", Engram layer " << slot;
    }
  }
  for (const std::string layer : {"1", "2"}) {
    const std::vector<float> gates = c.floats("engram_gate." + layer);
    const std::vector<float>& own = collector.floats.at("engram_gate." + layer);
    for (size_t row = 0; row < 33; ++row) {
      if (!prompt.tokens[row].is_image) continue;
      for (size_t j = 0; j < 4; ++j) {
        EXPECT_EQ(gates[row * 4 + j], 0.0F);
        EXPECT_EQ(own[row * 4 + j], 0.0F);
      }
    }
  }
  // Routes differ where scores are close together; with the bias of text most image rows would.
  size_t differing = 0;
  for (size_t layer = 0; layer < 8; ++layer) {
    const std::vector<int64_t> routes = c.ints("route_idx." + std::to_string(layer));
    for (size_t row = 0; row < 33; ++row) {
      const auto& own = collector.ints.at("route_idx." + std::to_string(layer)).at(static_cast<int64_t>(row));
      const auto begin = routes.begin() + static_cast<int64_t>(2 * row);
      if (std::set<int64_t>(own.begin(), own.end()) != std::set<int64_t>(begin, begin + 2)) ++differing;
    }
  }
  EXPECT_LE(differing, 4U) << "of " << 8 * 33;
}

struct FaultCase {
  const char* name;
  ImageFault fault;
  double median_min;  ///< median error of the rows it touches: half of what the golden README measured, and less
  bool touches_images;
};

class ImageMistake : public testing::TestWithParam<FaultCase> {};

TEST_P(ImageMistake, ShowsInTheLogits) {
  ModelOptions options;
  options.faults.image = GetParam().fault;
  const VisionFixture fixture(options);
  const Prompt prompt = make_prompt(fixture);
  const std::vector<double> errors = logit_errors(fixture, run_case(fixture, prompt, 33), "logits");
  std::vector<double> touched;
  const auto first_image = static_cast<size_t>(prompt.starts[0]);
  for (size_t row = first_image; row < errors.size(); ++row) {
    const bool is_image = row < prompt.tokens.size() && prompt.tokens[row].is_image;
    if (is_image == GetParam().touches_images) touched.push_back(errors[row]);
  }
  EXPECT_GE(golden::quantile(touched, 0.5), GetParam().median_min);
}

INSTANTIATE_TEST_SUITE_P(GoldenVision, ImageMistake,
                         testing::Values(FaultCase{"text_routing", ImageFault::kTextRouting, 0.12, true},
                                         FaultCase{"open_engram", ImageFault::kOpenEngram, 0.13, true},
                                         FaultCase{"hashed_images", ImageFault::kHashedImages, 0.04, false},
                                         FaultCase{"patch_major_cell", ImageFault::kPatchMajorCell, 0.5, true}),
                         [](const auto& test) { return test.param.name; });

class ImageChunk : public testing::TestWithParam<size_t> {};

TEST_P(ImageChunk, AcrossASpanChangesNoBit) {
  const VisionFixture fixture;
  const Prompt prompt = make_prompt(fixture);
  EXPECT_EQ(run_case(fixture, prompt, GetParam()), run_case(fixture, prompt, 33));
}

INSTANTIATE_TEST_SUITE_P(Vision, ImageChunk, testing::Values(1, 2, 5, 7, 16, 32));

TEST(Vision, ACheckpointWithoutATowerHasNone) {
  const Model model = golden::load_model("ckpt_textonly");
  EXPECT_FALSE(model.weights().vision.has_value());
  EXPECT_FALSE(model.config().vision.has_value());
}

TEST(Vision, ALimitOfAspectRatiosIsRefusedByName) {
  VisionConfig config;
  config.max_wh_ratio = 4;
  try {
    (void)image_plan_config(config);
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("max_wh_ratio"), std::string::npos);
  }
}

}  // namespace
}  // namespace tidepool
