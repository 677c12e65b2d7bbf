#include "session/grammar_constraint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/arena.h"
#include "base/error.h"
#include "engine/generator.h"
#include "session/loaded_model.h"
#include "text/completion_parser.h"
#include "text/grammar_test_support.h"
#include "text/json.h"

namespace tidepool {
namespace {

/// With the tiny golden checkpoint, whose weights are random: at temperature 1 it writes any token that it may.
class GrammarConstraintTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    LoadOptions options;
    options.folder = std::filesystem::path(TIDEPOOL_GOLDEN_DIR) / "ckpt";
    options.threads = 1;
    shared_model = LoadedModel::load(options);
    shared_library = std::make_unique<GrammarLibrary>(shared_model->tokenizer(), shared_model->stop_ids());
  }
  static void TearDownTestSuite() {
    shared_library.reset();
    shared_model.reset();
  }

  static const LoadedModel& model() { return *shared_model; }
  static GrammarLibrary& library() { return *shared_library; }

  static std::shared_ptr<const CompiledGrammar> grammar_of(std::string_view body, OutputStart start) {
    return library().grammar_for(parse_chat_request(parse_json(body)), start, true);
  }

  struct Output {
    std::string text;
    bool is_finished = false;
  };
  /// What the model writes from a token of its prompt on, its stop token left out.
  static Output generate(const std::shared_ptr<const CompiledGrammar>& grammar, uint64_t seed, int64_t max_tokens) {
    GrammarConstraint constraint(grammar);
    GenerationOptions options;
    options.sampling.temperature = 1;
    options.sampling.seed = seed;
    // The end is as likely as any token of 515; a pull towards it and towards what closes keeps the test short.
    for (const std::string_view text : {"\"", "}", "]", "<", "</"}) {
      if (const std::optional<int32_t> id = model().tokenizer().find_token(text))
        options.sampling.logit_bias.emplace_back(*id, 4);
    }
    options.sampling.logit_bias.emplace_back(model().stop_ids().front(), 4);
    options.stop_ids = model().stop_ids();
    options.max_tokens = max_tokens;
    options.constraint = &constraint;
    Arena arena;
    SequenceState state = model().model().new_sequence();
    Generator generator({model().model(), model().runtime(), arena}, state, options);
    const std::vector<InputToken> prompt = {{0, false}, {static_cast<int32_t>(10 + seed % 200), false}};
    EXPECT_TRUE(generator.read_prompt(prompt));
    Output output;
    std::vector<int32_t> ids;
    while (true) {
      const GenerationStep step = generator.next();
      if (step.finish == FinishReason::kStopToken) {
        output.is_finished = true;
        break;
      }
      ids.push_back(step.token->id);
      if (step.finish) break;
    }
    output.text = model().tokenizer().decode(ids);
    return output;
  }

 private:
  inline static std::unique_ptr<LoadedModel> shared_model;
  inline static std::unique_ptr<GrammarLibrary> shared_library;
};

TEST_F(GrammarConstraintTest, AnswersSatisfyTheirSchema) {
  size_t finished = 0;
  for (uint32_t seed = 0; seed < 12; ++seed) {
    const Json schema = RandomSchema(seed + 70).document();
    const std::string body = R"({"messages": [{"role": "user", "content": "x"}], "response_format":
        {"type": "json_schema", "json_schema": {"name": "n", "schema": )" +
                             write_json(schema) + "}}}";
    const Output output = generate(grammar_of(body, OutputStart::kContent), seed, 250);
    if (!output.is_finished) continue;
    ++finished;
    EXPECT_TRUE(SchemaOracle(schema).is_valid(parse_json(output.text))) << write_json(schema) << output.text;
  }
  EXPECT_GE(finished, 8U);
}

constexpr std::string_view kToolsBody = R"({"messages": [{"role": "user", "content": "x"}],
    "thinking": {"type": "disabled"}, "tool_choice": "required",
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
      "properties": {"s": {"type": "string", "maxLength": 4}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
      "required": ["s", "n"]}}}]})";

/// This vocabulary has no token for the mark, so it is spelled.
TEST_F(GrammarConstraintTest, ForcedCallsAreCalls) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    ChatRequest request = parse_chat_request(parse_json(kToolsBody));
    const Output output = generate(library().grammar_for(request, OutputStart::kCalls, false), seed, 300);
    ASSERT_TRUE(output.is_finished) << output.text;
    CompletionParserOptions options;
    options.start = OutputStart::kCalls;
    options.has_tools = true;
    const Completion completion = parse_completion(output.text, options);
    EXPECT_EQ(completion.content, "");
    ASSERT_EQ(completion.calls.size(), 1U) << output.text;
    EXPECT_TRUE(completion.calls[0].is_complete);
    EXPECT_EQ(completion.calls[0].name, "f");
    EXPECT_TRUE(SchemaOracle(request.tools[0].parameters).is_valid(parse_json(completion.calls[0].arguments)))
        << completion.calls[0].arguments;
  }
}

TEST_F(GrammarConstraintTest, ReasoningComesFirstAndIsFree) {
  const auto grammar =
      grammar_of(R"({"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_object"}})",
                 OutputStart::kReasoning);
  GrammarConstraint constraint(grammar);
  std::vector<float> logits(512, 1.0F);
  constraint.mask(logits);
  const auto count = std::ranges::count_if(logits, [](float logit) { return std::isfinite(logit); });
  EXPECT_EQ(count, 511);  // all but the end of the answer
  EXPECT_TRUE(std::isinf(logits[1]));
  const int32_t border = *model().tokenizer().find_added_token("</think>");
  constraint.accept(10);
  constraint.accept(border);
  std::ranges::fill(logits, 1.0F);
  constraint.mask(logits);
  for (size_t id = 0; id < logits.size(); ++id) {
    const std::string_view text = model().tokenizer().token_bytes(static_cast<int32_t>(id));
    EXPECT_EQ(std::isfinite(logits[id]),
              text.starts_with('{') && !model().tokenizer().is_added(static_cast<int32_t>(id)))
        << text;
  }
  // A draft went over the border and is taken back.
  constraint.rollback(1);
  EXPECT_EQ(constraint.accepted_count(), 1U);
  std::ranges::fill(logits, 1.0F);
  constraint.mask(logits);
  EXPECT_TRUE(std::isfinite(logits[static_cast<size_t>(border)]));
}

TEST_F(GrammarConstraintTest, SaysWhatItCannotDo) {
  EXPECT_EQ(grammar_of(R"({"messages": [{"role": "user", "content": "x"}]})", OutputStart::kContent), nullptr);
  EXPECT_THROW((void)grammar_of(R"({"messages": [{"role": "user", "content": "x"}], "response_format":
      {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}})",
                                OutputStart::kContent),
               Error);
  GrammarConstraint constraint(
      grammar_of(R"({"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_object"}})",
                 OutputStart::kContent));
  EXPECT_THROW(constraint.accept(1), Error);
  EXPECT_EQ(constraint.accepted_count(), 0U);
}

}  // namespace
}  // namespace tidepool
