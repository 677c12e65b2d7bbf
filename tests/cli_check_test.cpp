// The two commands that let another program check the engine: trace and vectors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/temp_folder.h"
#include "cli_program.h"
#include "formats/safetensors.h"

namespace tidepool {
namespace {

using testing::HasSubstr;

std::vector<float> floats(const SafetensorsFile& file, const std::string& name) {
  const TensorView view = file.tensor(name);
  EXPECT_EQ(view.dtype, Dtype::kF32);
  std::vector<float> values(view.bytes / sizeof(float));
  std::memcpy(values.data(), view.data, view.bytes);
  return values;
}

/// Median over the rows of ||a - b|| / ||b||, as the golden vectors' own page measures it.
double median_row_error(const std::vector<float>& a, const std::vector<float>& b, size_t columns) {
  std::vector<double> errors;
  for (size_t row = 0; row < b.size() / columns; ++row) {
    double difference = 0;
    double norm = 0;
    for (size_t i = row * columns; i < (row + 1) * columns; ++i) {
      difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
      norm += std::pow(static_cast<double>(b[i]), 2);
    }
    errors.push_back(std::sqrt(difference / norm));
  }
  std::ranges::nth_element(errors, errors.begin() + static_cast<std::ptrdiff_t>(errors.size() / 2));
  return errors[errors.size() / 2];
}

/// The tolerances are those the golden vectors' page gives for the two numerics.
TEST(CliTrace, ComputesWhatTheCaseNames) {
  const TempFolder folder;
  const std::string out = (folder / "out.safetensors").string();
  const ProgramResult result =
      run_tidepool({"trace", golden("ckpt"), "--case", golden("cases/prefill_64.safetensors"), "--out", out, "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(write_json(at(result.json(), "tensors")), HasSubstr("\"logits_hp\""));
  const SafetensorsFile expected(golden("cases/prefill_64.safetensors"));
  const SafetensorsFile computed(out);
  const size_t vocab = 512;
  EXPECT_LE(median_row_error(floats(computed, "logits"), floats(expected, "logits"), vocab), 0.025);
  EXPECT_LE(median_row_error(floats(computed, "logits_hp"), floats(expected, "logits_hp"), vocab), 0.01);
}

TEST(CliTrace, OptionsAreHonoured) {
  const TempFolder folder;
  const std::string out = (folder / "out.safetensors").string();
  const ProgramResult result =
      run_tidepool({"trace", golden("ckpt"), "--case", golden("cases/prefill_31.safetensors"), "--out", out,
                    "--numerics", "hp", "--isa", "reference", "--threads", "1", "--chunk", "7"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("out.safetensors: "));
  // The plain name is in hp numerics now, too.
  const SafetensorsFile computed(out);
  EXPECT_EQ(floats(computed, "logits"), floats(computed, "logits_hp"));
}

TEST(CliTrace, RunsDraftAndImageCases) {
  const TempFolder folder;
  const std::string out = (folder / "out.safetensors").string();
  for (const auto& [name, tensor] : {std::pair{"dspark_short", "draft_base_logits_hp"},
                                     {"image_text", "img1.vit_out"},
                                     {"image_plan", "plan.released"}}) {
    const std::string file = golden(std::string("cases/") + name + ".safetensors");
    const ProgramResult result = run_tidepool({"trace", golden("ckpt"), "--case", file, "--out", out});
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(SafetensorsFile(out).tensor(tensor).shape, SafetensorsFile(file).tensor(tensor).shape) << name;
  }
}

TEST(CliTrace, RefusesWhatIsNoCase) {
  const TempFolder folder;
  const std::string out = (folder / "out.safetensors").string();
  const ProgramResult missing = run_tidepool({"trace", golden("ckpt"), "--case", "no_such.safetensors", "--out", out});
  EXPECT_EQ(missing.status, 1);
  EXPECT_THAT(missing.err, HasSubstr("no_such.safetensors"));
  const ProgramResult other =
      run_tidepool({"trace", golden("ckpt"), "--case", golden("cases/kernels.safetensors"), "--out", out});
  EXPECT_EQ(other.status, 1);
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST(CliVectors, AnswersLineByLine) {
  const ProgramResult result = run_tidepool({"vectors", "detokenize", golden("ckpt")},
                                            "{\"id\": 1, \"ids\": [341]}\n{\"id\": 2, \"ids\": \"x\"}\n");
  ASSERT_EQ(result.status, 0) << result.err;
  const size_t end = result.out.find('\n');
  const Json first = parse_json(result.out.substr(0, end));
  EXPECT_EQ(at(first, "text").as_string(), "中文");
  const Json second = parse_json(result.out.substr(end + 1));
  EXPECT_TRUE(at(second, "error").as_bool());
  EXPECT_EQ(at(second, "id").try_int64(), 2);
}

TEST(CliVectors, ATokenizerFileWillDo) {
  const std::string line = "{\"text\": \"Hi\"}\n";
  const ProgramResult folder = run_tidepool({"vectors", "tokenize", golden("ckpt")}, line);
  const ProgramResult file = run_tidepool({"vectors", "tokenize", golden("ckpt/tokenizer.json")}, line);
  EXPECT_EQ(file.status, 0) << file.err;
  EXPECT_EQ(file.out, folder.out);
  EXPECT_EQ(integers(at(file.json(), "ids")), (std::vector<int64_t>{75, 108}));
}

TEST(CliVectors, SomeKindsNeedNoModel) {
  const ProgramResult result = run_tidepool(
      {"vectors", "encode"},
      R"({"id": 1, "messages": [{"role": "user", "content": "Hi"}], "options": {"thinking_mode": "chat"}})");
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("<｜User｜>Hi<｜Assistant｜></think>"));
  const ProgramResult without = run_tidepool({"vectors", "tokenize"}, "{}");
  EXPECT_EQ(without.status, 1);
  EXPECT_THAT(without.err, HasSubstr("needs a tokenizer"));
}

TEST(CliVectors, UnknownKindIsAUsageError) {
  EXPECT_EQ(run_tidepool({"vectors", "translate", golden("ckpt")}).status, 2);
}

}  // namespace
}  // namespace tidepool
