#include "train/vision.h"

#include <gtest/gtest.h>

#include "model/golden_test_support.h"
#include "model/vision.h"
#include "train/gradient_check.h"
#include "train/vision_parts.h"

namespace tidepool {
namespace {

/// Two pictures of 2 x 3 and 1 x 2 patches: cells of 2 x 2 patches are cut off in both.
std::vector<PatchRows> two_pictures() {
  return {{.begin = 0, .rows = 2, .columns = 3}, {.begin = 6, .rows = 1, .columns = 2}};
}
constexpr size_t kPatches = 8;

// Operators

TEST(VisionParts, BiasAndSumHaveTheirDerivatives) {
  TestRandom random(1);
  Leaf<double> x(random, 3, 5);
  Leaf<double> y(random, 3, 5);
  Leaf<double> bias(random, 1, 5);
  expect_gradients({.run =
                        [&](Tape<double>& tape) {
                          const Value<double> sum = add(tape, x.value(), y.value());
                          add_bias_in_place(tape, sum, bias.value());
                          return std::vector<Value<double>>{add(tape, sum, x.value())};
                        },
                    .inputs = {{"x", x}, {"y", y}, {"bias", bias}}});
}

TEST(VisionParts, GeluHasItsDerivative) {
  TestRandom random(2);
  Leaf<double> x(random, 4, 5, 3);
  expect_gradients({.run = [&](Tape<double>& tape) { return std::vector<Value<double>>{gelu(tape, x.value())}; },
                    .inputs = {{"x", x}}});
  // 0.5 (1 + erf(1 / sqrt 2)) is the normal distribution's 0.8413447 at 1.
  x.data() = {1, -1, 0, 10, -10};
  ThreadPool pool(1);
  Tape<double> tape(pool, Tape<double>::Mode::kForward);
  const Value<double> y = gelu(tape, x.value());
  EXPECT_NEAR(y.data.at(0, 0), 0.8413447460685429, 1e-15);
  EXPECT_NEAR(y.data.at(0, 1), -0.15865525393145707, 1e-15);
  EXPECT_EQ(y.data.at(0, 2), 0);
}

TEST(VisionParts, RotationTurnsHalvesByRowAndColumn) {
  TestRandom random(3);
  Leaf<double> x(random, kPatches, size_t{2} * 8);
  const std::vector<PatchRows> pictures = two_pictures();
  expect_gradients({.run =
                        [&](Tape<double>& tape) {
                          const Value<double> y = add(tape, x.value(), x.value());
                          rotate_halves_in_place(tape, y, patch_angles(tape, pictures, 8, 100));
                          return std::vector<Value<double>>{y};
                        },
                    .inputs = {{"x", x}}});
  // Patch (1, 2) of the first picture, theta 100, heads of 8: angles 1, 0.1 by row and 2, 0.2 by column.
  ThreadPool pool(1);
  Tape<double> tape(pool, Tape<double>::Mode::kForward);
  const PatchAngles<double> angles = patch_angles(tape, pictures, 8, 100);
  const std::vector<double> expected = {1, 0.1, 2, 0.2};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(angles.cos.at(5, i), std::cos(expected[i]), 1e-6);
    EXPECT_NEAR(angles.sin.at(5, i), std::sin(expected[i]), 1e-6);
  }
}

TEST(VisionParts, AttentionHasItsDerivative) {
  TestRandom random(4);
  Leaf<double> qkv(random, kPatches, size_t{3} * 2 * 4);
  expect_gradients({.run =
                        [&](Tape<double>& tape) {
                          return std::vector<Value<double>>{picture_attention(tape, qkv.value(), two_pictures(), 2)};
                        },
                    .inputs = {{"qkv", qkv}},
                    .entries = kPatches * 24});
}

TEST(VisionParts, AttentionStaysInsideItsPicture) {
  // A picture of one patch reads itself alone: the values.
  TestRandom random(5);
  Leaf<double> qkv(random, 3, 6);
  ThreadPool pool(2);
  Tape<double> tape(pool, Tape<double>::Mode::kForward);
  const Value<double> y = picture_attention(tape, qkv.value(), {{0, 1, 1}, {1, 1, 1}, {2, 1, 1}}, 1);
  for (size_t row = 0; row < 3; ++row) {
    for (size_t c = 0; c < 2; ++c)
      EXPECT_DOUBLE_EQ(y.data.at(row, c), qkv.value().data.at(row, 4 + c));
  }
}

TEST(VisionParts, CellsAreChannelByChannelWithZerosOutside) {
  TestRandom random(6);
  Leaf<double> x(random, kPatches, 2);
  expect_gradients({.run =
                        [&](Tape<double>& tape) {
                          return std::vector<Value<double>>{gather_cells(tape, x.value(), two_pictures(), 2)};
                        },
                    .inputs = {{"x", x}}});
  for (size_t i = 0; i < x.data().size(); ++i) {
    const size_t patch = i / 2;
    x.data()[i] = static_cast<double>(10 * patch + i % 2 + 1);
  }
  ThreadPool pool(1);
  Tape<double> tape(pool, Tape<double>::Mode::kForward);
  const Value<double> cells = gather_cells(tape, x.value(), two_pictures(), 2);
  ASSERT_EQ(cells.rows(), 3U);
  // Cell 1 of the first picture has its column 2, patches 2 and 5; the second picture has patches 6 and 7.
  const std::vector<std::vector<double>> expected = {
      {1, 11, 31, 41, 2, 12, 32, 42}, {21, 0, 51, 0, 22, 0, 52, 0}, {61, 71, 0, 0, 62, 72, 0, 0}};
  for (size_t cell = 0; cell < 3; ++cell)
    EXPECT_TRUE(std::ranges::equal(cells.data.row(cell), expected[cell])) << cell;
}

TEST(VisionParts, SpansAndReplacedRowsHaveTheirDerivatives) {
  TestRandom random(7);
  Leaf<double> cells(random, 3, 4);
  Leaf<double> start(random, 1, 4);
  Leaf<double> newline(random, 1, 4);
  Leaf<double> end(random, 1, 4);
  Leaf<double> text(random, 12, 4);
  const std::vector<size_t> places = {1, 2, 3, 4, 5, 7, 8, 9, 10};
  expect_gradients({.run =
                        [&](Tape<double>& tape) {
                          const Value<double> spans =
                              join_spans<double>(tape, cells.value(), two_pictures(), 2, {start, newline, end});
                          return std::vector<Value<double>>{replace_rows<double>(tape, text.value(), spans, places)};
                        },
                    .inputs = {{"cells", cells}, {"start", start}, {"newline", newline}, {"end", end}, {"text", text}},
                    .entries = 48});
  // START, two cells, NEWLINE, END; START, one cell, NEWLINE, END.
  ThreadPool pool(1);
  Tape<double> tape(pool, Tape<double>::Mode::kForward);
  const Value<double> spans = join_spans<double>(tape, cells.value(), two_pictures(), 2, {start, newline, end});
  ASSERT_EQ(spans.rows(), places.size());
  EXPECT_TRUE(std::ranges::equal(spans.data.row(2), cells.value().data.row(1)));
  EXPECT_TRUE(std::ranges::equal(spans.data.row(3), newline.value().data.row(0)));
  EXPECT_TRUE(std::ranges::equal(spans.data.row(5), start.value().data.row(0)));
  EXPECT_TRUE(std::ranges::equal(spans.data.row(8), end.value().data.row(0)));
}

// The whole tower, on the golden checkpoint

class GoldenTower : public testing::Test {
 protected:
  GoldenTower() {
    for (const char* name : {"img0.rgb", "img1.rgb"}) {
      const std::vector<int64_t> shape = case_.shape(name);
      RgbImage image(static_cast<size_t>(shape[1]), static_cast<size_t>(shape[0]));
      std::ranges::transform(case_.ints(name), image.pixels.begin(), [](int64_t v) { return static_cast<uint8_t>(v); });
      pictures_.push_back(prepare_image(image_plan_config(*model_.config().vision), image, name));
    }
  }
  static ModelOptions hp() {
    ModelOptions options;
    options.numerics = kHpNumerics;
    return options;
  }
  template <typename Real>
  [[nodiscard]] ParameterSet<Real> parameters() const {
    ParameterSet<Real> set(model_.config());
    load_parameters(model_.checkpoint(), set);
    return set;
  }
  [[nodiscard]] std::vector<const PreparedImage*> both() const { return {&pictures_[0], &pictures_[1]}; }

  golden::Case case_{"image_text"};
  Model model_ = golden::load_model("ckpt", hp());
  std::vector<PreparedImage> pictures_;
};

TEST_F(GoldenTower, ForwardIsTheEngines) {
  ThreadPool pool(2);
  const ParameterSet<float> set = parameters<float>();
  Tape<float> tape(pool, Tape<float>::Mode::kForward);
  const Value<float> rows = encode_pictures<float>(tape, {}, bind_vision(set, model_.config()), both());
  std::vector<float> expected;
  for (const VisionFeatures& one : encode_images(model_, {pool, kernels::reference_kernels()}, both()))
    expected.insert(expected.end(), one.values.span().begin(), one.values.span().end());
  // Sums of binary32 in another order: some 2^-24 times the root of 576 terms, through two blocks.
  const std::vector<double> errors =
      golden::row_errors({rows.data.data, rows.rows() * rows.cols()}, expected, rows.rows());
  EXPECT_LE(golden::quantile(errors, 1), 1e-5);
}

TEST_F(GoldenTower, SlowGradientsAreThoseOfFiniteDifferences) {
  ParameterSet<double> set = parameters<double>();
  std::vector<std::pair<std::string, Value<double>>> inputs;
  for (Parameter<double>& parameter : set.all()) {
    if (is_vision_parameter(parameter.name)) inputs.emplace_back(parameter.name, parameter.value);
  }
  EXPECT_EQ(inputs.size(), 2 + 2 * 8 + 1 + 4 + 3U);
  const VisionParameters<double> bound = bind_vision(set, model_.config());
  const PreparedImage* picture = &pictures_[0];
  // The result has some thousand values, so the loss is of order 30.
  expect_gradients({.run =
                        [&](Tape<double>& tape) {
                          return std::vector<Value<double>>{encode_pictures<double>(tape, {}, bound, {&picture, 1})};
                        },
                    .inputs = inputs,
                    .entries = 2,
                    .tolerance = 1e-6});
}

TEST_F(GoldenTower, IsTheSameForAnyNumberOfThreadsAndNeighbours) {
  std::vector<std::vector<float>> all;
  for (const size_t threads : {size_t{1}, size_t{3}}) {
    ThreadPool pool(threads);
    ParameterSet<float> set = parameters<float>();
    Tape<float> tape(pool, Tape<float>::Mode::kTraining, kernels::GemmPrecision::kBf16);
    const Value<float> rows =
        encode_pictures<float>(tape, {.weights = true}, bind_vision(set, model_.config()), both());
    std::ranges::copy(std::span(rows.data.data, rows.rows() * rows.cols()), rows.grad.data);
    tape.backward();
    all.emplace_back(rows.data.data, rows.data.data + rows.rows() * rows.cols());
    for (const Parameter<float>& parameter : set.all()) {
      for (size_t row = 0; row < parameter.value.rows(); ++row)
        all.back().insert(all.back().end(), parameter.value.grad.row(row).begin(), parameter.value.grad.row(row).end());
    }
  }
  EXPECT_EQ(all[0], all[1]);

  ThreadPool pool(2);
  const ParameterSet<float> set = parameters<float>();
  Tape<float> tape(pool, Tape<float>::Mode::kForward, kernels::GemmPrecision::kBf16);
  const PreparedImage* second = &pictures_[1];
  const Value<float> alone =
      encode_pictures<float>(tape, {.weights = true}, bind_vision(set, model_.config()), {&second, 1});
  const auto first_rows = static_cast<size_t>(pictures_[0].plan.tokens());
  const auto begin = all[0].begin() + static_cast<std::ptrdiff_t>(first_rows * alone.cols());
  EXPECT_TRUE(std::equal(alone.data.data, alone.data.data + alone.rows() * alone.cols(), begin));
}

}  // namespace
}  // namespace tidepool
