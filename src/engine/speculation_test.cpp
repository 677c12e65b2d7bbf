#include "engine/speculation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>

#include "base/error.h"
#include "engine/generator.h"
#include "engine/sampler_random.h"
#include "model/draft.h"
#include "model/golden_test_support.h"

namespace tidepool {
namespace {

/// Knows what will be written and drafts it, but for one token after `right[round]` true ones.
class ScriptedDrafter final : public Drafter {
 public:
  ScriptedDrafter(std::vector<int32_t> tokens, std::vector<size_t> right)
      : tokens_(std::move(tokens)), right_(std::move(right)) {}

  void propose(std::span<const DraftingRequest> requests) override {
    for (const DraftingRequest& request : requests) {
      const size_t right = right_[round_++ % right_.size()];
      auto at = static_cast<size_t>(request.state->length()) + 1;  // behind the token taken last
      for (size_t i = 0; i < request.most; ++i, ++at) {
        const int32_t truth = at < tokens_.size() ? tokens_[at] : 3;
        request.drafts->add({.id = i == right ? (truth + 1) % 500 : truth}, 0.5);
      }
    }
  }

 private:
  std::vector<int32_t> tokens_;  ///< prompt and output
  std::vector<size_t> right_;
  size_t round_ = 0;
};

struct Output {
  std::vector<int32_t> ids;
  std::optional<FinishReason> finish;
  DraftCounts counts;
};

ModelOptions with_drafts() {
  ModelOptions options;
  options.has_drafts = true;
  return options;
}

/// The golden model with its draft head, on one table of kernels.
class Bench {
 public:
  explicit Bench(const kernels::KernelTable& table = kernels::select_kernels("auto"))
      : runtime{pool, table}, model(golden::load_model("ckpt", with_drafts())) {}

  /// Generates until the end, or until `tokens_max` tokens, when it is cut as by someone who has read enough.
  Output run(SequenceState& state, std::span<const InputToken> prompt, const GenerationOptions& options,
             const Generator::Drafting& drafting, size_t tokens_max = std::numeric_limits<size_t>::max()) {
    Generator generator({model, runtime, arena}, state, options, drafting);
    EXPECT_TRUE(generator.read_prompt(prompt));
    Output output;
    while (!output.finish && output.ids.size() < tokens_max) {
      const GenerationStep step = generator.next();
      output.ids.push_back(step.token->id);
      output.finish = step.finish;
    }
    generator.end();
    output.counts = generator.draft_counts();
    return output;
  }

  SequenceState read(std::span<const InputToken> tokens) {
    SequenceState state = model.new_sequence();
    if (tokens.empty()) return state;
    const Arena::Scope scope(arena);
    const ForwardRequest request{&state, tokens, 0, 0};
    (void)forward(model, runtime, arena, {&request, 1});
    return state;
  }

  ThreadPool pool{1};
  Runtime runtime;
  Model model;
  Arena arena;
};

std::vector<InputToken> random_prompt(uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<InputToken> tokens(1 + random() % 40);
  for (InputToken& token : tokens)
    token.id = static_cast<int32_t>(3 + random() % 490);
  return tokens;
}

GenerationOptions greedy_options(int64_t max_tokens) {
  GenerationOptions options;
  options.sampling.temperature = 0;
  options.max_tokens = max_tokens;
  return options;
}

std::vector<int32_t> all_tokens(std::span<const InputToken> prompt, const std::vector<int32_t>& output) {
  std::vector<int32_t> all;
  for (const InputToken& token : prompt)
    all.push_back(token.id);
  all.insert(all.end(), output.begin(), output.end());
  return all;
}

/// Drafted output and the state it leaves are those of an undrafted run, to the bit.
void expect_equal_to_undrafted(Bench& bench, std::span<const InputToken> prompt, const GenerationOptions& options,
                               const std::vector<std::vector<size_t>>& patterns) {
  const SequenceState begun = bench.read(prompt.first(prompt.size() - 1));
  const std::span<const InputToken> rest = prompt.last(1);
  SequenceState plain = begun.fork();
  const Output expected = bench.run(plain, rest, options, {});
  const auto compare = [&](Drafter& drafter, const std::string& what) {
    SequenceState state = begun.fork();
    const Output actual = bench.run(state, rest, options, {.drafter = &drafter, .length = 5});
    ASSERT_EQ(actual.ids, expected.ids) << what;
    ASSERT_EQ(actual.finish, expected.finish) << what;
    ASSERT_TRUE(same_state(state, plain) && same_draft_windows(state, plain)) << what;
  };
  for (const std::vector<size_t>& pattern : patterns) {
    ScriptedDrafter drafter(all_tokens(prompt, expected.ids), pattern);
    compare(drafter, "pattern that begins with " + std::to_string(pattern.front()));
  }
  ModelDrafter drafter(bench.model, bench.runtime, bench.arena);
  compare(drafter, "the draft head");
}

/// Prompts of 1 to 40 tokens, windows of 16: rings wrap, groups of two are cut at odd places, blocks are taken back
/// whole and in part. The tables share 200 prompts; the reference takes few of them, as it takes its time.
TEST(Speculation, GreedyOutputEqualsUndraftedOnEveryKernelTable) {
  const std::span<const kernels::KernelTable* const> tables = kernels::available_kernels();
  constexpr uint32_t kPrompts = 200;
  constexpr uint32_t kReferencePrompts = 3;
  uint32_t seed = 0;
  for (size_t t = 0; t < tables.size(); ++t) {
    Bench bench(*tables[t]);
    const auto tables_left = static_cast<uint32_t>(tables.size() - 1 - t);
    const uint32_t end = tables_left == 0 ? kPrompts : seed + (kPrompts - kReferencePrompts - seed) / tables_left;
    for (; seed < end; ++seed) {
      std::mt19937 random(seed);
      std::vector<size_t> pattern(4);
      for (size_t& right : pattern)
        right = random() % 6;
      expect_equal_to_undrafted(bench, random_prompt(seed), greedy_options(9), {pattern});
      if (HasFatalFailure()) FAIL() << tables[t]->name << ", prompt " << seed;
    }
  }
}

TEST(Speculation, EveryAcceptCountAtEveryPlaceOfGroupAndRing) {
  Bench bench;
  const std::vector<InputToken> long_prompt = random_prompt(3);
  for (size_t length = 13; length < 19; ++length) {
    const std::span<const InputToken> prompt = std::span(long_prompt).first(std::min(length, long_prompt.size()));
    expect_equal_to_undrafted(bench, prompt, greedy_options(12), {{0}, {1}, {2}, {3}, {4}, {5}, {5, 0}, {1, 4}});
  }
}

TEST(Speculation, BlocksOfGlobalKvAreEnteredAndLeftAgain) {
  Bench bench;
  std::vector<InputToken> prompt;
  while (prompt.size() < 125)
    for (const InputToken& token : random_prompt(static_cast<uint32_t>(prompt.size())))
      prompt.push_back(token);
  prompt.resize(125);
  expect_equal_to_undrafted(bench, prompt, greedy_options(10), {{0}, {1}, {2}, {3}, {5}});
}

TEST(Speculation, LimitsHoldWithinABlock) {
  Bench bench;
  const std::vector<InputToken> prompt = random_prompt(5);
  for (int64_t tokens = 1; tokens <= 8; ++tokens) {
    expect_equal_to_undrafted(bench, prompt, greedy_options(tokens), {{5}});
    GenerationOptions options = greedy_options(50);
    options.context_max = static_cast<int64_t>(prompt.size()) + tokens;
    expect_equal_to_undrafted(bench, prompt, options, {{5}, {1}});
  }
}

TEST(Speculation, BiasPenaltiesAndStopTokensApplyWithinABlock) {
  Bench bench;
  for (uint32_t seed = 0; seed < 10; ++seed) {
    const std::vector<InputToken> prompt = random_prompt(seed);
    GenerationOptions options = greedy_options(16);
    options.sampling.frequency_penalty = 1.5;
    options.sampling.repetition_penalty = 1.2;
    options.sampling.logit_bias = {{9, 20}, {10, 19}};
    expect_equal_to_undrafted(bench, prompt, options, {{5}, {2, 0}});
    SequenceState plain = bench.model.new_sequence();
    const Output free = bench.run(plain, prompt, options, {});
    for (const size_t at : {size_t{1}, size_t{4}, size_t{8}}) {
      GenerationOptions stopping = options;
      stopping.stop_ids = {free.ids[at]};
      expect_equal_to_undrafted(bench, prompt, stopping, {{5}, {3}});
      stopping.min_tokens = 6;
      expect_equal_to_undrafted(bench, prompt, stopping, {{5}, {3}});
    }
  }
}

/// A grammar with a memory: the next token must leave another remainder by 3 than the one before, and after a token
/// below 100 comes one above 300, as when an output crosses the border of two of its parts.
class Alternating final : public LogitsConstraint {
 public:
  void mask(std::span<float> logits) override {
    for (size_t id = 0; id < logits.size(); ++id) {
      const bool repeats = static_cast<int32_t>(id) % 3 == last_ % 3;
      const bool must_rise = last_ >= 0 && last_ < 100 && id <= 300;
      if (repeats || must_rise) logits[id] = -std::numeric_limits<float>::infinity();
    }
  }
  void accept(int32_t id) override {
    last_ = id;
    accepted.push_back(id);
  }
  std::vector<int32_t> accepted;

 private:
  int32_t last_ = -1;
};

TEST(Speculation, ConstraintSeesTheTokensTakenAndNoOthers) {
  Bench bench;
  for (uint32_t seed = 20; seed < 30; ++seed) {
    const std::vector<InputToken> prompt = random_prompt(seed);
    const auto run_constrained = [&](const Generator::Drafting& drafting) {
      Alternating constraint;
      GenerationOptions options = greedy_options(14);
      options.constraint = &constraint;
      SequenceState state = bench.model.new_sequence();
      Output output = bench.run(state, prompt, options, drafting);
      EXPECT_EQ(constraint.accepted, output.ids);
      return output;
    };
    const Output expected = run_constrained({});
    for (const std::vector<size_t>& pattern : {std::vector<size_t>{5}, {0}, {2, 4}}) {
      ScriptedDrafter scripted(all_tokens(prompt, expected.ids), pattern);
      EXPECT_EQ(run_constrained({.drafter = &scripted, .length = 5}).ids, expected.ids);
    }
    ModelDrafter drafter(bench.model, bench.runtime, bench.arena);
    EXPECT_EQ(run_constrained({.drafter = &drafter, .length = 5}).ids, expected.ids);
  }
}

/// The same, which can take tokens back; says nothing of those that it was only asked about.
class TakingBack final : public LogitsConstraint {
 public:
  void mask(std::span<float> logits) override {
    ++masks;
    Alternating now;
    if (!accepted.empty()) now.accept(accepted.back());
    now.mask(logits);
  }
  void accept(int32_t id) override { accepted.push_back(id); }
  [[nodiscard]] bool can_rollback() const override { return true; }
  void rollback(size_t count) override {
    ASSERT_LE(count, accepted.size());
    accepted.resize(accepted.size() - count);
  }
  std::vector<int32_t> accepted;
  size_t masks = 0;
};

/// Drafts obey a constraint that can look ahead: each is one that it allows behind those before. So at least as many
/// are taken as when they meet it only afterwards, and what is written is the same.
TEST(Speculation, DraftsAreHeldToTheConstraintWhileTheyAreMade) {
  Bench bench;
  ModelDrafter drafter(bench.model, bench.runtime, bench.arena);
  int64_t accepted = 0;
  int64_t accepted_blindly = 0;
  for (uint32_t seed = 20; seed < 40; ++seed) {
    const std::vector<InputToken> prompt = random_prompt(seed);
    const auto run_constrained = [&](LogitsConstraint& constraint, const Generator::Drafting& drafting) {
      GenerationOptions options = greedy_options(24);
      options.constraint = &constraint;
      SequenceState state = bench.model.new_sequence();
      return bench.run(state, prompt, options, drafting);
    };
    Alternating plain;
    const Output expected = run_constrained(plain, {});
    Alternating blind;
    accepted_blindly += run_constrained(blind, {.drafter = &drafter, .length = 5}).counts.accepted_total();
    TakingBack looking;
    const Output output = run_constrained(looking, {.drafter = &drafter, .length = 5});
    EXPECT_EQ(output.ids, expected.ids);
    EXPECT_EQ(looking.accepted, output.ids);
    accepted += output.counts.accepted_total();
  }
  EXPECT_GT(accepted, accepted_blindly);
}

/// Proposes, and looks at what the constraint is left with.
TEST(Speculation, ProposedTokensObeyTheConstraintAndAreForgotten) {
  Bench bench;
  const std::vector<InputToken> prompt = random_prompt(3);
  SequenceState state = bench.read(prompt);
  TakingBack constraint;
  GenerationOptions options = greedy_options(40);
  options.constraint = &constraint;
  const Continuation continuation(bench.model.config(), options);
  constraint.accept(7);
  ModelDrafter drafter(bench.model, bench.runtime, bench.arena);
  Drafts drafts;
  const DraftingRequest request{&state, &continuation, 7, 5, &drafts};
  drafter.propose({&request, 1});
  ASSERT_EQ(drafts.size(), 5U);
  EXPECT_EQ(constraint.masks, 5U);
  EXPECT_THAT(constraint.accepted, testing::ElementsAre(7));
  Alternating check;
  check.accept(7);
  for (size_t i = 0; i < drafts.size(); ++i) {
    std::vector<float> logits(500, 0.0F);
    check.mask(logits);
    EXPECT_EQ(logits[static_cast<size_t>(drafts.token(i).id)], 0.0F) << i;
    check.accept(drafts.token(i).id);
  }
}

/// Allows three tokens and nothing behind them.
class ThreeTokens final : public LogitsConstraint {
 public:
  void mask(std::span<float> logits) override {
    if (accepted >= 3) std::ranges::fill(logits, -std::numeric_limits<float>::infinity());
  }
  void accept(int32_t /*id*/) override { ++accepted; }
  [[nodiscard]] bool can_rollback() const override { return true; }
  void rollback(size_t count) override { accepted -= count; }
  size_t accepted = 0;
};

/// Where a constraint leaves nothing, drafts end: whether the output comes there is not theirs to say.
TEST(Speculation, DraftsEndWhereTheConstraintLeavesNothing) {
  Bench bench;
  const std::vector<InputToken> prompt = random_prompt(3);
  SequenceState state = bench.read(prompt);
  ThreeTokens constraint;
  GenerationOptions options = greedy_options(40);
  options.constraint = &constraint;
  const Continuation continuation(bench.model.config(), options);
  const Continuation free(bench.model.config(), greedy_options(40));
  ModelDrafter drafter(bench.model, bench.runtime, bench.arena);
  Drafts drafts;
  Drafts free_drafts;
  const std::vector<DraftingRequest> requests = {{&state, &continuation, 7, 5, &drafts},
                                                 {&state, &free, 7, 5, &free_drafts}};
  drafter.propose(requests);
  EXPECT_EQ(drafts.size(), 3U);
  EXPECT_EQ(free_drafts.size(), 5U);
  EXPECT_EQ(constraint.accepted, 0U);
}

/// A stop string is found by whoever reads the text: the output is cut inside a block, and what lies behind the cut was
/// read already. Neither the sequence nor the next turn may know of it.
TEST(Speculation, OutputCutInsideABlockLeavesTheStateOfTheCut) {
  Bench bench;
  const std::vector<InputToken> prompt = random_prompt(41);
  SequenceState whole = bench.model.new_sequence();
  const Output all = bench.run(whole, prompt, greedy_options(14), {});
  for (size_t cut = 1; cut <= 13; ++cut) {
    SequenceState plain = bench.model.new_sequence();
    (void)bench.run(plain, prompt, greedy_options(14), {}, cut);
    ScriptedDrafter drafter(all_tokens(prompt, all.ids), {5});
    SequenceState state = bench.model.new_sequence();
    const Output drafted = bench.run(state, prompt, greedy_options(14), {.drafter = &drafter, .length = 5}, cut);
    EXPECT_EQ(drafted.ids, std::vector<int32_t>(all.ids.begin(), all.ids.begin() + static_cast<int64_t>(cut)));
    EXPECT_EQ(state.length(), static_cast<int64_t>(prompt.size() + cut - 1));
    EXPECT_TRUE(same_state(state, plain) && same_draft_windows(state, plain)) << cut;
    EXPECT_TRUE(state.can_rollback(std::max(state.length() - 8, int64_t{0})));
  }
}

/// By a clock to which every pass takes as long, whatever its rows, drafts that come true save four passes of five, and
/// those that never do are soon given up. Nothing is measured beforehand.
TEST(Speculation, AutoDraftsAsLongAsItPays) {
  Bench bench;
  const std::vector<InputToken> prompt = random_prompt(5);
  const GenerationOptions options = greedy_options(300);
  SequenceState plain = bench.model.new_sequence();
  const Output expected = bench.run(plain, prompt, options, {});
  double now = 0;
  const auto run = [&](std::vector<size_t> right) {
    ScriptedDrafter drafter(all_tokens(prompt, expected.ids), std::move(right));
    DraftPlanner planner = estimated_draft_planner(bench.model, DraftPlanner::Costs::kMeasured);
    const DraftClock clock = [&now] { return std::chrono::duration<double>(now += 1); };
    SequenceState state = bench.model.new_sequence();
    now = 0;
    const Output output = bench.run(state, prompt, options, {.drafter = &drafter, .planner = &planner, .clock = clock});
    EXPECT_EQ(output.ids, expected.ids);
    return output.counts;
  };
  // Looks of the clock: two for a step, two more for one that is drafted. Undrafted, 299 steps take 598.
  EXPECT_EQ(run({5}).rejected_total(), 0);
  EXPECT_LT(now, 598 * 0.45);
  EXPECT_EQ(run({0}).accepted_total(), 0);
  EXPECT_LT(now, 598 + 20);
}

TEST(Speculation, CountsSayWhatBecameOfEachPlace) {
  Bench bench;
  const std::vector<InputToken> prompt = random_prompt(50);
  SequenceState plain = bench.model.new_sequence();
  const Output all = bench.run(plain, prompt, greedy_options(11), {});
  // 1 token from the prompt, then steps of 2 + 1, 0 + 1 and 3 + 1; of the last 2 tokens one can be drafted.
  ScriptedDrafter drafter(all_tokens(prompt, all.ids), {2, 0, 3, 5});
  SequenceState state = bench.model.new_sequence();
  const Output output = bench.run(state, prompt, greedy_options(11), {.drafter = &drafter, .length = 4});
  EXPECT_THAT(output.counts.proposed, testing::ElementsAre(4, 3, 3, 3));
  EXPECT_THAT(output.counts.accepted, testing::ElementsAre(3, 2, 1, 0));
  EXPECT_EQ(output.counts.rounds, 4);
  EXPECT_EQ(output.counts.accepted_total(), 6);
  EXPECT_EQ(output.counts.rejected_total(), 7);
}

TEST(Speculation, SameSeedAndLengthGiveTheSameSampledOutput) {
  Bench bench;
  GenerationOptions options = greedy_options(12);
  options.sampling.temperature = 1;
  options.sampling.seed = 3;
  const auto ids = [&] {
    ModelDrafter drafter(bench.model, bench.runtime, bench.arena);
    SequenceState state = bench.model.new_sequence();
    return bench.run(state, random_prompt(7), options, {.drafter = &drafter, .length = 3}).ids;
  };
  EXPECT_EQ(ids(), ids());
}

TEST(Speculation, SequencesOfABatchAreDraftedAsAlone) {
  Bench bench;
  const ModelConfig& config = bench.model.config();
  ModelDrafter drafter(bench.model, bench.runtime, bench.arena);
  std::vector<SequenceState> states;
  std::vector<Continuation> continuations;
  for (uint32_t seed = 0; seed < 4; ++seed) {
    states.push_back(bench.model.new_sequence());
    if (seed == 2) states.back().append(random_prompt(seed));  // without draft windows: nothing to go by
    GenerationOptions options = greedy_options(20);
    options.sampling.temperature = seed % 2 == 0 ? 0 : 1;
    options.sampling.seed = seed;
    continuations.emplace_back(config, options);
    if (seed != 2) states.back() = bench.read(random_prompt(seed));
  }
  std::vector<Drafts> together(4);
  std::vector<DraftingRequest> requests;
  for (size_t i = 0; i < 4; ++i)
    requests.push_back({&states[i], &continuations[i], static_cast<int32_t>(i), i == 3 ? 2U : 5U, &together[i]});
  drafter.propose(requests);
  EXPECT_EQ(together[2].size(), 0U);
  EXPECT_EQ(together[3].size(), 2U);
  for (size_t i = 0; i < 4; ++i) {
    Drafts alone;
    DraftingRequest request = requests[i];
    request.drafts = &alone;
    drafter.propose({&request, 1});
    ASSERT_EQ(alone.size(), together[i].size());
    for (size_t j = 0; j < alone.size(); ++j) {
      EXPECT_EQ(alone.token(j).id, together[i].token(j).id);
      EXPECT_EQ(alone.token(j).total, together[i].token(j).total);
      EXPECT_EQ(alone.survival()[j], together[i].survival()[j]);
    }
  }
}

/// Steps that leave the head's windows alone give the same logits; afterwards there is nothing to draft by until rows
/// are written again, which then begin there.
TEST(Speculation, StepsWithoutDraftRowsGiveTheSameAndDraftsBeginAnew) {
  Bench bench;
  const std::vector<InputToken> prompt = random_prompt(3);
  SequenceState kept = bench.read(prompt);
  SequenceState left = kept.fork();
  const InputToken token{17, false};
  const auto step = [&](SequenceState& state, bool keeps_draft_rows) {
    const Arena::Scope scope(bench.arena);
    ForwardRequest request{&state, {&token, 1}, 0, 1};
    request.keeps_draft_rows = keeps_draft_rows;
    const Span2d<const float> logits = forward(bench.model, bench.runtime, bench.arena, {&request, 1});
    return std::vector<float>(logits.data, logits.data + logits.cols);
  };
  EXPECT_EQ(step(left, false), step(kept, true));
  EXPECT_TRUE(same_state(left, kept));
  EXPECT_TRUE(has_draft_rows(kept));
  EXPECT_FALSE(has_draft_rows(left));
  EXPECT_EQ(step(left, true), step(kept, true));
  EXPECT_TRUE(has_draft_rows(left));
  EXPECT_EQ(left.draft_begin(), left.length() - 1);
  EXPECT_LT(kept.draft_begin(), left.draft_begin());

  const Continuation continuation(bench.model.config(), greedy_options(40));
  ModelDrafter drafter(bench.model, bench.runtime, bench.arena);
  Drafts drafts;
  const DraftingRequest request{&left, &continuation, 7, 5, &drafts};
  drafter.propose({&request, 1});
  EXPECT_EQ(drafts.size(), 5U);
}

TEST(Speculation, DraftsNeedADraftHead) {
  const Model without = golden::load_model("ckpt");
  ThreadPool pool(1);
  const Runtime runtime{pool, kernels::reference_kernels()};
  Arena arena;
  try {
    const ModelDrafter drafter(without, runtime, arena);
    FAIL() << "there is nothing to draft with";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), testing::HasSubstr("--draft off"));
  }
}

/// A language of four tokens: what comes next depends on the token before. The draft's idea of it is another.
struct ToyLanguage {
  std::array<std::array<float, 4>, 4> target;
  std::array<std::array<float, 4>, 4> draft;
};

ToyLanguage toy_language() {
  std::mt19937 random(12);
  const auto number = [&] { return static_cast<float>(random() % 4000) / 1000.0F - 2.0F; };
  ToyLanguage toy;
  for (size_t i = 0; i < 4; ++i) {
    for (size_t j = 0; j < 4; ++j) {
      toy.target[i][j] = number();
      toy.draft[i][j] = toy.target[i][j] + 0.5F * number();
    }
  }
  return toy;
}

/// Probability of each next token under the options, by drawing from a fine comb of numbers.
std::vector<double> probabilities(std::span<const float> logits, const SamplingParams& params) {
  constexpr int kComb = 20000;
  std::vector<double> result(logits.size());
  Sampler sampler;
  for (int i = 0; i < kComb; ++i)
    result[static_cast<size_t>(sampler.sample({.logits = logits, .params = &params, .draw = (i + 0.5) / kComb}).id)] +=
        1.0 / kComb;
  return result;
}

/// How often each output of three tokens comes up in `runs` runs, with blocks of `length` drafts.
std::vector<int64_t> toy_outputs(const ToyLanguage& toy, const SamplingParams& params, size_t length, int runs) {
  ModelConfig config;
  config.vocab_size = 4;
  config.max_position_embeddings = 64;
  KvLayout layout;
  finish_kv_layout(layout);
  const auto shared_layout = std::make_shared<const KvLayout>(layout);
  std::vector<int64_t> counts(64);
  Sampler sampler;
  DraftCounts ignored;
  for (int run = 0; run < runs; ++run) {
    GenerationOptions options;
    options.sampling = params;
    options.sampling.seed = static_cast<uint64_t>(run);
    options.max_tokens = 3;
    Continuation continuation(config, options);
    SequenceState state(shared_layout);
    int32_t last = 0;
    size_t output = 0;
    std::optional<FinishReason> finish;
    while (!finish) {
      Speculation speculation;
      int32_t before = last;
      for (size_t i = 0; i < length; ++i) {
        const std::span<float> room = speculation.drafts().weights_for_next(4, length);
        const DraftedToken token = *continuation.draft(sampler, toy.draft[static_cast<size_t>(before)], i, room);
        speculation.drafts().add(token, 0.5);
        before = token.id;
      }
      const std::vector<InputToken> rows = speculation.begin(state, last);
      state.append(rows);
      do {
        const auto row = static_cast<size_t>(rows[speculation.row()].id);
        const GenerationStep step = speculation.take(continuation, sampler, toy.target[row]);
        finish = step.finish;
        last = step.token->id;
        output = output * 4 + static_cast<size_t>(last);
      } while (speculation.goes_on());
      (void)speculation.settle(state, ignored);
    }
    ++counts[output];
  }
  return counts;
}

/// Pearson's statistic over outputs of some probability, less its expectation, in standard deviations.
double excess(const std::vector<int64_t>& counts, const std::vector<double>& expected, int runs) {
  double statistic = 0;
  double cells = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double mean = expected[i] * runs;
    if (mean < 5) continue;
    statistic += std::pow(static_cast<double>(counts[i]) - mean, 2) / mean;
    ++cells;
  }
  return (statistic - (cells - 1)) / std::sqrt(2 * (cells - 1));
}

std::vector<double> toy_expectation(const ToyLanguage& toy, const SamplingParams& params) {
  std::vector<std::vector<double>> next;
  for (const auto& logits : toy.target)
    next.push_back(probabilities(logits, params));
  std::vector<double> result(64);
  for (size_t output = 0; output < 64; ++output) {
    const size_t a = output / 16;
    const size_t b = output / 4 % 4;
    result[output] = next[0][a] * next[a][b] * next[b][output % 4];
  }
  return result;
}

/// 64 outputs, 120,000 runs; the seed of each run is its number. Four standard deviations are one chance in some ten
/// thousand, and the numbers are fixed.
TEST(Speculation, SampledOutputKeepsItsDistribution) {
  const ToyLanguage toy = toy_language();
  constexpr int kRuns = 120'000;
  SamplingParams cool;
  cool.temperature = 0.6;
  SamplingParams nucleus;
  nucleus.top_p = 0.7;
  SamplingParams few;
  few.top_k = 2;
  SamplingParams biased;
  biased.logit_bias = {{1, 2}, {3, -1}};
  biased.min_p = 0.1;
  for (const SamplingParams& params : {SamplingParams{}, cool, nucleus, few, biased}) {
    const std::vector<double> expected = toy_expectation(toy, params);
    EXPECT_LT(excess(toy_outputs(toy, params, 2, kRuns), expected, kRuns), 4);
  }
  const std::vector<double> expected = toy_expectation(toy, {});
  EXPECT_LT(excess(toy_outputs(toy, {}, 0, kRuns), expected, kRuns), 4);
  EXPECT_LT(excess(toy_outputs(toy, {}, 1, kRuns), expected, kRuns), 4);
  EXPECT_LT(excess(toy_outputs(toy, {}, 4, kRuns), expected, kRuns), 4);
  // The test would notice: the same outputs are far from a slightly different expectation.
  ToyLanguage other = toy;
  other.target[0][2] += 0.1F;
  EXPECT_GT(excess(toy_outputs(toy, {}, 2, kRuns), toy_expectation(other, {}), kRuns), 4);
}

/// A draft that was certain (as a look-up would make it) is taken with the target's own probability.
TEST(Speculation, CertainDraftsKeepTheDistributionToo) {
  const std::vector<float> logits = {0.3F, -1.2F, 1.1F, 0.0F};
  const SamplingParams params;
  const std::vector<double> expected = probabilities(logits, params);
  constexpr int kRuns = 100'000;
  std::vector<int64_t> counts(4);
  Sampler sampler;
  const DraftedToken drafted{.id = 2};
  for (int run = 0; run < kRuns; ++run) {
    const auto index = static_cast<uint64_t>(run);
    ++counts[static_cast<size_t>(sampler
                                     .sample({.logits = logits,
                                              .params = &params,
                                              .draw = random_unit(1, index),
                                              .drafted = &drafted,
                                              .stands_draw = random_unit(1, index, RandomUse::kDraftStands)})
                                     .id)];
  }
  EXPECT_LT(excess(counts, expected, kRuns), 4);
}

}  // namespace
}  // namespace tidepool
