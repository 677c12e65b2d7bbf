#include "engine/generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/mutated_checkpoint.h"
#include "formats/safetensors.h"

namespace tidepool {
namespace {

/// The prompt and the greedy answer of the golden vectors. Their prompt was picked for wide gaps between the best and
/// the second token, so every honest arithmetic gives the same ids.
class GeneratorTest : public testing::Test {
 protected:
  static std::filesystem::path golden_folder() { return TIDEPOOL_GOLDEN_DIR; }

  static std::vector<int32_t> ids_of(const SafetensorsFile& file, const std::string& name) {
    const TensorView view = file.tensor(name);
    EXPECT_EQ(view.dtype, Dtype::kI32);
    std::vector<int32_t> ids(view.bytes / sizeof(int32_t));
    std::memcpy(ids.data(), view.data, view.bytes);
    return ids;
  }

  /// The golden checkpoint, with the token map that the golden vectors give.
  static std::unique_ptr<const Model> load_model() {
    return std::make_unique<const Model>(Checkpoint::open(golden_folder() / "ckpt"), token_map());
  }
  static std::vector<int32_t> token_map() {
    return ids_of(SafetensorsFile(golden_folder() / "cases/engram_this_config.safetensors"), "token_map");
  }

  static void SetUpTestSuite() {
    shared_model = load_model().release();
    const SafetensorsFile greedy(golden_folder() / "cases/greedy.safetensors");
    for (const int32_t id : ids_of(greedy, "prompt_ids"))
      shared_prompt.push_back({id, false});
    shared_expected = ids_of(greedy, "output_ids");
  }
  static void TearDownTestSuite() {
    delete shared_model;
    shared_prompt.clear();
  }

  static GenerationOptions greedy_options() {
    GenerationOptions options;
    options.sampling.temperature = 0;
    options.max_tokens = static_cast<int64_t>(shared_expected.size());
    options.replay = Replay::kFull;
    return options;
  }

  [[nodiscard]] Generator::Engine engine() { return {*shared_model, runtime_, arena_}; }

  struct Output {
    std::vector<int32_t> ids;
    FinishReason finish;
  };
  Output run(const GenerationOptions& options) {
    SequenceState state = shared_model->new_sequence();
    Generator generator(engine(), state, options);
    EXPECT_TRUE(generator.read_prompt(shared_prompt));
    Output output{{}, FinishReason::kCancelled};
    for (std::optional<FinishReason> finish; !finish;) {
      const GenerationStep step = generator.next();
      if (step.token) output.ids.push_back(step.token->id);
      finish = step.finish;
      output.finish = finish.value_or(output.finish);
    }
    // What the last token would have told is never computed.
    EXPECT_EQ(state.length(), static_cast<int64_t>(shared_prompt.size() + output.ids.size() - 1));
    return output;
  }

  std::string refusal(const GenerationOptions& options) {
    try {
      (void)run(options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.what();
    }
    return "";
  }

  ThreadPool pool_{1};
  Runtime runtime_{pool_, kernels::reference_kernels()};
  Arena arena_;
  inline static const Model* shared_model = nullptr;
  inline static std::vector<InputToken> shared_prompt;
  inline static std::vector<int32_t> shared_expected;
};

TEST_F(GeneratorTest, FollowsTheGoldenGreedyAnswer) {
  const Output output = run(greedy_options());
  EXPECT_EQ(output.ids, shared_expected);
  EXPECT_EQ(output.finish, FinishReason::kMaxTokens);
}

TEST_F(GeneratorTest, ChunksDoNotChangeTheAnswer) {
  GenerationOptions options = greedy_options();
  options.chunk = 3;
  EXPECT_EQ(run(options).ids, shared_expected);
}

TEST_F(GeneratorTest, SameSeedGivesTheSameTokens) {
  GenerationOptions options = greedy_options();
  options.sampling.temperature = 1;
  options.sampling.seed = 5;
  const Output first = run(options);
  EXPECT_EQ(run(options).ids, first.ids);
  options.sampling.seed = 6;
  EXPECT_NE(run(options).ids, first.ids);
}

TEST_F(GeneratorTest, StopTokenEndsTheOutputAndIsItsLast) {
  GenerationOptions options = greedy_options();
  options.stop_ids = {shared_expected[4]};
  const auto first = std::ranges::find(shared_expected, shared_expected[4]) - shared_expected.begin();
  const Output output = run(options);
  EXPECT_EQ(output.finish, FinishReason::kStopToken);
  EXPECT_EQ(output.ids, std::vector<int32_t>(shared_expected.begin(), shared_expected.begin() + first + 1));
}

TEST_F(GeneratorTest, MinTokensForbidsStopTokens) {
  GenerationOptions options = greedy_options();
  options.stop_ids = {shared_expected[0]};
  options.min_tokens = 3;
  const Output output = run(options);
  ASSERT_GE(output.ids.size(), 3U);
  EXPECT_EQ(std::ranges::count(output.ids.begin(), output.ids.begin() + 3, shared_expected[0]), 0);
}

TEST_F(GeneratorTest, FullContextEndsTheOutput) {
  GenerationOptions options = greedy_options();
  options.context_max = static_cast<int64_t>(shared_prompt.size()) + 3;
  const Output output = run(options);
  EXPECT_EQ(output.finish, FinishReason::kContextFull);
  EXPECT_EQ(output.ids, std::vector<int32_t>(shared_expected.begin(), shared_expected.begin() + 3));
}

TEST_F(GeneratorTest, PromptWithoutRoomIsRefusedWithBothLengths) {
  GenerationOptions options = greedy_options();
  options.context_max = static_cast<int64_t>(shared_prompt.size());
  EXPECT_EQ(refusal(options),
            "the prompt has " + std::to_string(shared_prompt.size()) + " tokens and the context " +
                std::to_string(shared_prompt.size()) +
                ", so no token of an answer fits behind it; shorten the prompt, or raise --max-model-len");
}

TEST_F(GeneratorTest, RefusesOptionsOutOfRange) {
  const auto refusal_of = [&](auto change) {
    GenerationOptions options = greedy_options();
    change(options);
    return refusal(options);
  };
  EXPECT_EQ(refusal_of([](GenerationOptions& o) { o.max_tokens = 0; }), "max_tokens is 0; it must be at least 1");
  EXPECT_EQ(refusal_of([](GenerationOptions& o) { o.min_tokens = 999; }),
            "min_tokens is 999; it must be at most max_tokens, 20");
  EXPECT_EQ(refusal_of([](GenerationOptions& o) { o.context_max = 4096; }),
            "max_model_len is 4096; it must be from 2 to 1024, what the model was made for");
  EXPECT_EQ(refusal_of([](GenerationOptions& o) { o.stop_ids = {512}; }),
            "a stop id is 512; it must be a token of the model, 0 to 511");
  EXPECT_EQ(refusal_of([](GenerationOptions& o) { o.chunk = 0; }), "chunk is 0; it must be at least 1");
  EXPECT_EQ(refusal_of([](GenerationOptions& o) { o.sampling.top_p = 2; }),
            "top_p is 2; it must be above 0 and at most 1");
}

TEST_F(GeneratorTest, RefusesTokensTheModelLacks) {
  SequenceState state = shared_model->new_sequence();
  Generator generator(engine(), state, greedy_options());
  const std::vector<InputToken> prompt = {{0, false}, {512, false}};
  EXPECT_THROW((void)generator.read_prompt(prompt), Error);
  EXPECT_EQ(state.length(), 0);
}

TEST_F(GeneratorTest, StopRequestEndsPromptAndOutput) {
  std::stop_source source;
  SequenceState state = shared_model->new_sequence();
  GenerationOptions options = greedy_options();
  options.chunk = 2;
  Generator cancelled(engine(), state, options);
  const auto stop_at_four = [&](size_t done, size_t total) {
    EXPECT_EQ(total, shared_prompt.size());
    if (done == 4) source.request_stop();
  };
  EXPECT_FALSE(cancelled.read_prompt(shared_prompt, stop_at_four, source.get_token()));
  EXPECT_EQ(state.length(), 4);

  // What was read is still good: another generator reads the rest.
  Generator generator(engine(), state, options);
  ASSERT_TRUE(generator.read_prompt(std::span(shared_prompt).subspan(4)));
  EXPECT_EQ(generator.next().token->id, shared_expected[0]);
  const GenerationStep step = generator.next(source.get_token());
  EXPECT_FALSE(step.token);
  EXPECT_EQ(step.finish, FinishReason::kCancelled);
}

/// A final norm whose weights are NaN (0x7fc0 in bfloat16) makes every logit NaN.
TEST_F(GeneratorTest, LogitsThatAreNotNumbersAreAnErrorWithThePosition) {
  const golden::MutatedCheckpoint broken({}, [](const std::string& name, std::vector<std::byte>& data) {
    if (name == "norm.weight") {
      for (size_t i = 0; i < data.size(); ++i)
        data[i] = i % 2 == 0 ? std::byte{0xc0} : std::byte{0x7f};
    }
    return true;
  });
  const Model model(Checkpoint::open(broken.path()), token_map());
  SequenceState state = model.new_sequence();
  Generator generator({model, runtime_, arena_}, state, greedy_options());
  ASSERT_TRUE(generator.read_prompt(shared_prompt));
  try {
    (void)generator.next();
    FAIL() << "no token can be taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNumeric);
    EXPECT_THAT(error.what(), testing::HasSubstr("token 1 of the output, position 12: the model's logits hold NaN"));
  }
}

/// Lets only one token through and counts what it is told.
class Always : public LogitsConstraint {
 public:
  explicit Always(size_t id) : id_(id) {}
  void mask(std::span<float> logits) override {
    for (size_t id = 0; id < logits.size(); ++id)
      if (id != id_) logits[id] = -std::numeric_limits<float>::infinity();
  }
  void accept(int32_t id) override { accepted.push_back(id); }
  std::vector<int32_t> accepted;

 private:
  size_t id_;
};

TEST_F(GeneratorTest, ConstraintSeesEveryToken) {
  Always constraint(7);
  GenerationOptions options = greedy_options();
  options.constraint = &constraint;
  options.max_tokens = 3;
  EXPECT_THAT(run(options).ids, testing::ElementsAre(7, 7, 7));
  EXPECT_THAT(constraint.accepted, testing::ElementsAre(7, 7, 7));
}

/// A bias of 20 makes token 9 the answer every time; a frequency penalty of 2 has eaten it up after ten times.
TEST_F(GeneratorTest, PenaltiesCountTheOutput) {
  GenerationOptions options = greedy_options();
  options.sampling.logit_bias = {{9, 20}};
  EXPECT_EQ(std::ranges::count(run(options).ids, 9), 20);
  options.sampling.frequency_penalty = 2;
  const auto penalised = std::ranges::count(run(options).ids, 9);
  EXPECT_GE(penalised, 5);
  EXPECT_LE(penalised, 15);
}

/// A decode step takes no new scratch once the first one has run.
TEST_F(GeneratorTest, DecodeStepsKeepToTheirScratch) {
  SequenceState state = shared_model->new_sequence();
  Generator generator(engine(), state, greedy_options());
  ASSERT_TRUE(generator.read_prompt(shared_prompt));
  (void)generator.next();
  (void)generator.next();
  const size_t bytes = arena_.bytes_reserved();
  for (int i = 0; i < 10; ++i)
    (void)generator.next();
  EXPECT_EQ(arena_.bytes_reserved(), bytes);
}

}  // namespace
}  // namespace tidepool
