// The golden cases of the draft head and of pictures through a trace, by the tolerances of the golden README.
#include <gtest/gtest.h>

#include <set>

#include "engine/trace_test_support.h"

namespace tidepool {
namespace {

using trace_test::expect_refused;
using trace_test::find_tensor;
using trace_test::floats;
using trace_test::ints;
using trace_test::logits_errors;
using trace_test::Models;
using trace_test::OwnCase;
using trace_test::passes_hp;
using trace_test::passes_official;

Models golden_models(bool has_drafts = false) {
  ModelOptions options;
  options.has_drafts = has_drafts;
  return Models(golden::folder() / "ckpt", options);
}

/// Everything the case names was computed in its shape and type, but for `inputs` and what only the reference measures.
void expect_all_outputs(const TraceResult& result, const golden::Case& c, const std::set<std::string>& inputs,
                        const std::set<std::string>& reference_only) {
  EXPECT_EQ(std::set<std::string>(result.not_computed.begin(), result.not_computed.end()), reference_only);
  for (const SafetensorsFile::Entry& entry : c.file().entries()) {
    if (inputs.contains(entry.name) || reference_only.contains(entry.name)) continue;
    const TraceTensor* tensor = find_tensor(result, entry.name);
    ASSERT_NE(tensor, nullptr) << entry.name;
    EXPECT_EQ(tensor->dtype, entry.dtype) << entry.name;
    EXPECT_EQ(tensor->shape, entry.shape) << entry.name;
  }
}

bool is_exact(const TraceResult& result, const golden::Case& c, const std::string& name) {
  const TraceTensor* tensor = find_tensor(result, name);
  const TensorView expected = c.file().tensor(name);
  return tensor != nullptr && tensor->data.size() == expected.bytes &&
         std::memcmp(tensor->data.data(), expected.data, expected.bytes) == 0;
}

/// Row errors of a BF16 tensor.
std::vector<double> bf16_errors(const TraceResult& result, const golden::Case& c, const std::string& name) {
  const TraceTensor* tensor = find_tensor(result, name);
  std::vector<float> values(tensor->data.size() / sizeof(Bf16));
  for (size_t i = 0; i < values.size(); ++i) {
    Bf16 value;
    std::memcpy(&value, tensor->data.data() + i * sizeof value, sizeof value);
    values[i] = to_float(value);
  }
  return golden::row_errors(values, c.floats(name), static_cast<size_t>(tensor->shape[0]));
}

class TraceGoldenDrafts : public testing::TestWithParam<const char*> {
 protected:
  /// Values of a tensor in those rounds whose ids no noise of the reference changed.
  [[nodiscard]] std::vector<float> stable_rounds(const std::vector<float>& values) const {
    const std::vector<int64_t> stable = case_.ints("stable");
    const size_t width = values.size() / stable.size();
    std::vector<float> result;
    for (size_t round = 0; round < stable.size(); ++round) {
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(round * width);
      if (stable[round] != 0) result.insert(result.end(), begin, begin + static_cast<std::ptrdiff_t>(width));
    }
    return result;
  }
  /// Largest difference of confidence in these rounds.
  [[nodiscard]] double confidence_error(const TraceResult& result, const std::string& name) const {
    const std::vector<float> own = stable_rounds(floats(result, name));
    const std::vector<float> expected = stable_rounds(case_.floats(name));
    double error = 0;
    for (size_t i = 0; i < expected.size(); ++i)
      error = std::max(error, std::abs(double{own[i]} - double{expected[i]}));
    return error;
  }
  golden::Case case_{GetParam()};
};

TEST_P(TraceGoldenDrafts, ProposalsAreTheReferencesInBothNumerics) {
  const TraceResult result = golden_models(true).trace(case_);
  expect_all_outputs(result, case_, {"prompt_ids", "follow_ids"}, {"round_hp", "round_noise", "stable"});
  const auto block = static_cast<size_t>(case_.shape("confidence")[1]);
  const size_t rows = case_.ints("stable").size() * block;
  const auto base_errors = [&](const std::string& name) {
    return golden::row_errors(floats(result, name), case_.floats(name), rows);
  };
  // Official: noise of the reference 0.009 / 0.012 at the median and at most; hp: nothing, until a value crosses a
  // grid.
  EXPECT_LE(golden::quantile(base_errors("draft_base_logits"), 0.5), 0.0105);
  EXPECT_LE(golden::quantile(base_errors("draft_base_logits"), 1), 0.025);
  EXPECT_LE(golden::quantile(base_errors("draft_base_logits_hp"), 0.5), 0.002);
  EXPECT_LE(golden::quantile(base_errors("draft_base_logits_hp"), 1), 0.0075);
  const std::vector<float> biased = stable_rounds(floats(result, "draft_logits"));
  const std::vector<float> expected = stable_rounds(case_.floats("draft_logits"));
  const size_t vocab = expected.size() / (stable_rounds(case_.floats("confidence")).size());
  EXPECT_LE(golden::quantile(golden::row_errors(biased, expected, expected.size() / vocab), 1), 0.025);
  EXPECT_LE(confidence_error(result, "confidence"), 0.06);
  EXPECT_LE(confidence_error(result, "confidence_hp"), 0.02);
  EXPECT_LE(golden::quantile(bf16_errors(result, case_, "main_hidden"), 1), 0.025);
}

TEST_P(TraceGoldenDrafts, StableRoundsHaveTheReferencesIds) {
  const TraceResult result = golden_models(true).trace(case_);
  const std::vector<int32_t> anchors = ints(result, "anchor_ids");
  const std::vector<int32_t> ids = ints(result, "draft_ids");
  const std::vector<int64_t> expected = case_.ints("draft_ids");
  const std::vector<int64_t> stable = case_.ints("stable");
  const size_t width = expected.size() / stable.size();
  for (size_t round = 0; round < stable.size(); ++round) {
    EXPECT_EQ(anchors[round], ids[round * width]) << "round " << round;  // the model's own
    for (size_t i = 0; i < (stable[round] != 0 ? width : 0); ++i)
      EXPECT_EQ(ids[round * width + i], expected[round * width + i]) << "round " << round << ", place " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, TraceGoldenDrafts, testing::Values("dspark_short", "dspark_long"));

TEST(TraceDrafts, ModelsWithoutADraftHeadRefuseTheCase) {
  const golden::Case c("dspark_short");
  try {
    (void)golden_models().trace(c);
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("no draft head"), std::string::npos) << error.what();
  }
}

/// A short draft case with these ids to follow; none: without the tensor.
void add_draft_case(OwnCase& own, const golden::Case& c, const std::vector<int32_t>& draft_ids) {
  for (const std::string name : {"prompt_ids", "follow_ids"}) {
    const std::vector<int64_t> ids = c.ints(name);
    own.add_ints(name, {ids.begin(), ids.end()});
  }
  if (!draft_ids.empty()) own.add_ints("draft_ids", draft_ids, {4, static_cast<int64_t>(draft_ids.size() / 4)});
  own.add_output("draft_logits", Dtype::kF32, {4, 5, 512});
  own.add_output("confidence", Dtype::kF32, {4, 5});
}

TEST(TraceDrafts, BlocksFollowTheCaseOrTheirOwnChoices) {
  const golden::Case c("dspark_short");  // stable throughout: its ids are the model's own
  const Models models = golden_models(true);
  const auto logits_of = [&](const std::vector<int32_t>& draft_ids) {
    OwnCase own;
    add_draft_case(own, c, draft_ids);
    const SafetensorsFile file = own.open();
    return floats(trace_case({models.official, models.hp, models.without_grid, models.runtime}, file, {}),
                  "draft_logits");
  };
  const std::vector<int64_t> golden_ids = c.ints("draft_ids");
  std::vector<int32_t> ids(golden_ids.begin(), golden_ids.end());
  const std::vector<float> expected = logits_of(ids);
  EXPECT_EQ(logits_of({}), expected);
  EXPECT_EQ(logits_of(std::vector<int32_t>(24, -1)), expected);
  ids[2] = (ids[2] + 1) % 512;  // followed at the third place of the first block
  const std::vector<float> other = logits_of(ids);
  for (size_t place = 0; place < 20; ++place) {
    const auto begin = static_cast<std::ptrdiff_t>(place * 512);
    EXPECT_EQ(std::equal(other.begin() + begin, other.begin() + begin + 512, expected.begin() + begin), place != 2);
  }
}

TEST(TraceDrafts, IdsThatCannotBeFollowedAreRefused) {
  const golden::Case c("dspark_short");
  OwnCase fewer;
  add_draft_case(fewer, c, std::vector<int32_t>(20, 1));
  expect_refused(fewer, ErrorCode::kInvalidArgument, "4 rows");
  OwnCase foreign;
  add_draft_case(foreign, c, std::vector<int32_t>(24, 512));
  expect_refused(foreign, ErrorCode::kInvalidArgument, "token 512");
}

TEST(TraceDrafts, WhatDecidesIsInputs) {
  EXPECT_TRUE(is_draft_case(golden::Case("dspark_long").file()));
  for (const std::string name : {"greedy", "prefill_5", "decode_1_24", "image_text", "image_plan"})
    EXPECT_FALSE(is_draft_case(golden::Case(name).file())) << name;
}

const std::set<std::string> kImageInputs{"input_ids", "token_types", "follow_ids", "img0.rgb", "img1.rgb"};

TEST(TraceGoldenImages, LogitsPassInBothNumerics) {
  const golden::Case c("image_text");
  const TraceResult result = golden_models().trace(c);
  expect_all_outputs(result, c, kImageInputs, {"row_hp", "row_noise", "row_noise_typical"});
  EXPECT_TRUE(passes_official(logits_errors(result, "logits", c.floats("logits")), c.floats("row_noise")));
  EXPECT_TRUE(passes_hp(logits_errors(result, "logits_hp", c.floats("logits_hp"))));
}

TEST(TraceGoldenImages, PlanCanvasPatchesAndHashesAreExactAndTheTowerWithinItsNoise) {
  const golden::Case c("image_text");
  const TraceResult result = golden_models().trace(c);
  for (const std::string name : {"img0.geometry", "img0.grid", "img0.start", "img0.patches", "img1.geometry",
                                 "img1.grid", "img1.start", "img1.patches", "img1.padded_rgb", "engram_hash"})
    EXPECT_TRUE(is_exact(result, c, name)) << name;
  for (const std::string image : {"img0.", "img1."}) {
    for (const std::string stage : {"vit_embed", "vit_block.0", "vit_block.1", "vit_out", "aligner_out"})
      EXPECT_LE(golden::quantile(bf16_errors(result, c, image + stage), 1), 0.015) << image << stage;
  }
  EXPECT_LE(golden::quantile(bf16_errors(result, c, "merged_embed"), 1), 0.015);
}

TEST(TraceGoldenImages, RoutesAndGatesAreTheReferences) {
  const golden::Case c("image_text");
  const TraceResult result = golden_models().trace(c);
  size_t differing = 0;  // scores are close together now and then; with the bias of text most image rows would differ
  for (size_t layer = 0; layer < 8; ++layer) {
    const std::string name = "route_idx." + std::to_string(layer);
    const std::vector<int32_t> own = ints(result, name);
    const std::vector<int64_t> expected = c.ints(name);
    for (size_t at = 0; at < expected.size(); at += 2) {
      if (std::set<int64_t>{own[at], own[at + 1]} != std::set<int64_t>{expected[at], expected[at + 1]}) ++differing;
    }
  }
  EXPECT_LE(differing, 4U) << "of " << 8 * 33;
  const std::vector<int64_t> types = c.ints("token_types");
  for (const std::string name : {"engram_gate.1", "engram_gate.2"}) {
    const std::vector<float> own = floats(result, name);
    const std::vector<float> expected = c.floats(name);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(own[i], expected[i], types[i / 4] >= 0 ? 0 : 0.02) << name << " at " << i;
  }
}

TEST(TraceImages, ChunksDoNotChangeABit) {
  const golden::Case c("image_text");
  const Models models = golden_models();
  TraceOptions small;
  small.chunk = 5;
  const TraceResult whole = models.trace(c);
  const TraceResult chunked = models.trace(c, small);
  ASSERT_EQ(whole.tensors.size(), chunked.tensors.size());
  for (size_t i = 0; i < whole.tensors.size(); ++i)
    EXPECT_EQ(whole.tensors[i].data, chunked.tensors[i].data) << whole.tensors[i].name;
}

TEST(TraceGoldenImages, PlansAreExact) {
  const golden::Case c("image_plan");
  const TraceResult result = golden_models().trace(c);
  expect_all_outputs(result, c, {"sizes", "params.this_config", "params.released"}, {});
  EXPECT_TRUE(is_exact(result, c, "plan.this_config"));
  EXPECT_TRUE(is_exact(result, c, "plan.released"));
}

TEST(TraceImages, ModelsWithoutAVisionTowerRefuseTheCase) {
  const golden::Case c("image_text");
  try {
    (void)Models(golden::folder() / "ckpt_textonly").trace(c);
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("no vision tower"), std::string::npos) << error.what();
  }
}

/// One picture of 84 x 84, which takes START, 2 x (2 cells, NEWLINE), END, between two tokens of text.
struct ImageCase {
  std::vector<int32_t> types{-1, 0, 1, 1, 2, 1, 1, 2, 3, -1};
  std::vector<int32_t> ids = std::vector<int32_t>(10, 5);
  Dtype pixel_type = Dtype::kU8;
  std::vector<int64_t> shape{84, 84, 3};
  size_t pictures = 1;

  void add_to(OwnCase& own) const {
    own.add_ints("input_ids", ids);
    own.add_ints("token_types", types);
    for (size_t i = 0; i < pictures; ++i)
      own.add_output("img" + std::to_string(i) + ".rgb", pixel_type, shape);
  }
};

void expect_image_case_refused(const ImageCase& image_case, const std::string& part_of_message) {
  OwnCase own;
  image_case.add_to(own);
  expect_refused(own, ErrorCode::kInvalidArgument, part_of_message);
}

TEST(TraceImages, PicturesThatDoNotFitTheTokensAreRefused) {
  ImageCase fewer_types;
  fewer_types.types.pop_back();
  expect_image_case_refused(fewer_types, "9 values for 10 tokens");
  ImageCase other_span;
  other_span.types[4] = 1;
  expect_image_case_refused(other_span, "2 rows of 2 cells, 8 positions");
  ImageCase cut_span;
  cut_span.types.resize(8);
  cut_span.ids.resize(8);
  expect_image_case_refused(cut_span, "img0.rgb");
  ImageCase middle;
  middle.types[1] = 1;
  expect_image_case_refused(middle, "not the span");
  ImageCase none;
  none.pictures = 0;
  expect_image_case_refused(none, "there is no img0.rgb");
  ImageCase spare;
  spare.pictures = 2;
  expect_image_case_refused(spare, "no place for img1.rgb");
}

TEST(TraceImages, TensorsThatAreNoPictureAreRefused) {
  ImageCase floats;
  floats.pixel_type = Dtype::kF32;
  expect_image_case_refused(floats, "img0.rgb is no picture");
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {84, 84}, {84, 84, 4}, {0, 84, 3}, {84, 0, 3}, {1, 70'000, 3}, {84, 84, 3, 1}}) {
    ImageCase wrong;
    wrong.shape = shape;
    expect_image_case_refused(wrong, "img0.rgb is no picture");
  }
}

void expect_image_output_refused(const std::string& name, Dtype dtype, const std::vector<int64_t>& shape,
                                 ErrorCode code, const std::string& part_of_message) {
  OwnCase own;
  ImageCase{}.add_to(own);
  own.add_output(name, dtype, shape);
  expect_refused(own, code, part_of_message);
}

TEST(TraceImages, OutputsThatThePictureDoesNotHaveAreRefused) {
  constexpr auto kInvalid = ErrorCode::kInvalidArgument;
  expect_image_output_refused("img1.vit_out", Dtype::kBf16, {36, 64}, kInvalid, "the case has 1");
  expect_image_output_refused("img0.vit_block.2", Dtype::kBf16, {36, 64}, kInvalid, "names layer 2");
  expect_image_output_refused("img0.vit_out", Dtype::kBf16, {35, 64}, kInvalid, "35 rows, this model gives 36");
  expect_image_output_refused("img0.vit_out", Dtype::kBf16, {36, 65}, kInvalid, "rows of 65 values");
  expect_image_output_refused("logits", Dtype::kF32, {9, 512}, kInvalid, "9 rows");
  expect_image_output_refused("img0.grid", Dtype::kF32, {4}, ErrorCode::kUnsupported, "I32 or I64 expected");
  expect_image_output_refused("img0.padded_rgb", Dtype::kF32, {84, 84, 3}, ErrorCode::kUnsupported, "U8 expected");
}

TEST(TraceImages, RowsLimitPositionsAndNotPictures) {
  OwnCase own;
  ImageCase{}.add_to(own);
  own.add_ints("rows", {9});
  own.add_output("logits", Dtype::kF32, {1, 512});
  own.add_output("img0.vit_out", Dtype::kBf16, {36, 64});
  const Models models = golden_models();
  const SafetensorsFile file = own.open();
  const TraceResult result = trace_case({models.official, models.hp, models.without_grid, models.runtime}, file, {});
  ASSERT_EQ(result.tensors.size(), 2U);
  EXPECT_TRUE(result.not_computed.empty());
}

void expect_plan_refused(const std::vector<int32_t>& sizes, const std::vector<int32_t>& params, ErrorCode code,
                         const std::string& part_of_message) {
  OwnCase own;
  own.add_ints("sizes", sizes);
  own.add_ints("params.x", params);
  own.add_output("plan.x", Dtype::kI32, {1, 8});
  expect_refused(own, code, part_of_message);
}

TEST(TraceImages, PlansOfImpossibleSizesAndConfigsAreRefused) {
  constexpr auto kInvalid = ErrorCode::kInvalidArgument;
  const std::vector<int32_t> params{14, 3, 40, 7056, -1};
  expect_plan_refused({5}, params, kInvalid, "pairs");
  expect_plan_refused({5, 0}, params, kInvalid, "pairs");
  expect_plan_refused({5, 5, 6, 6}, params, kInvalid, "another number of values");
  expect_plan_refused({5, 5}, {14, 3, 40, 7056}, kInvalid, "params.x");
  expect_plan_refused({5, 5}, {0, 3, 40, 7056, -1}, kInvalid, "params.x");
  expect_plan_refused({5, 5}, {14, 3, 3, 7056, -1}, kInvalid, "params.x");
  expect_plan_refused({5, 5}, {14, 3, 40, 7056, 4}, ErrorCode::kUnsupported, "ratio");
}

}  // namespace
}  // namespace tidepool
