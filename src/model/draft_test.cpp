// The draft head beside the golden vectors: proposals right behind a prompt and behind every token that follows it.
#include "model/draft.h"

#include <gtest/gtest.h>

#include <random>

#include "kernels/kernel_table.h"
#include "model/golden_test_support.h"

namespace tidepool {
namespace {

/// All proposals of a golden case, as this engine makes them.
struct Proposals {
  std::vector<int32_t> anchors;     ///< [rounds]: the backbone's most likely token
  std::vector<float> base_logits;   ///< [rounds * block, vocab], before the Markov bias
  std::vector<float> logits;        ///< the same behind it, for the case's drafts
  std::vector<float> confidence;    ///< [rounds * block], for the case's drafts
  std::vector<int32_t> own_drafts;  ///< [rounds * block]: most likely tokens, each behind its own predecessor
};

int32_t largest(std::span<const float> row) {
  return static_cast<int32_t>(std::ranges::max_element(row) - row.begin());
}

/// Follows a golden case. Anchors and Markov predecessors are the case's, so that rounds stay comparable.
class Follower {
 public:
  Follower(const golden::Case& c, const Model& model, const kernels::KernelTable& table)
      : case_(c), model_(model), runtime_{pool_, table} {}

  Proposals run() {
    SequenceState state = model_.new_sequence();
    const std::vector<InputToken> prompt = case_.tokens("prompt_ids");
    const std::vector<InputToken> follow = case_.tokens("follow_ids");
    propose_behind(state, prompt, 0);
    for (size_t i = 0; i < follow.size(); ++i)
      propose_behind(state, std::span(follow).subspan(i, 1), i + 1);
    return std::move(result_);
  }

 private:
  void propose_behind(SequenceState& state, std::span<const InputToken> tokens, size_t round) {
    const Arena::Scope scope(arena_);
    const ForwardRequest request{&state, tokens, 0, 1};
    result_.anchors.push_back(largest(forward(model_, runtime_, arena_, {&request, 1}).row(0)));
    const std::vector<int64_t> ids = case_.ints("draft_ids");
    const size_t block = model_.draft_head()->block;
    std::vector<int32_t> previous;
    for (size_t i = 0; i < block; ++i) {
      const size_t at = model_.options().faults.draft == DraftFault::kMarkovOfAnchor ? 0 : i;
      previous.push_back(static_cast<int32_t>(ids[round * (block + 1) + at]));
    }
    const DraftRequest draft{&state, previous.front()};
    const DraftBlocks blocks = run_draft_blocks(model_, runtime_, arena_, {&draft, 1});
    append(result_.base_logits, blocks.logits);
    draft_alone(blocks, previous.front());
    const std::vector<float> confidence = draft_confidences(model_, runtime_, arena_, blocks.hidden, previous);
    result_.confidence.insert(result_.confidence.end(), confidence.begin(), confidence.end());
    add_markov_bias(model_, runtime_, arena_, previous, blocks.logits);
    append(result_.logits, blocks.logits);
  }

  void draft_alone(const DraftBlocks& blocks, int32_t anchor) {
    int32_t previous = anchor;
    for (size_t i = 0; i < blocks.logits.rows; ++i) {
      const Span2d<float> row = arena_.matrix(1, blocks.logits.cols);
      std::ranges::copy(blocks.logits.row(i), row.data);
      add_markov_bias(model_, runtime_, arena_, {&previous, 1}, row);
      previous = largest(row.row(0));
      result_.own_drafts.push_back(previous);
    }
  }

  static void append(std::vector<float>& all, Span2d<const float> rows) {
    all.insert(all.end(), rows.data, rows.data + rows.rows * rows.cols);
  }

  const golden::Case& case_;
  const Model& model_;
  ThreadPool pool_{2};
  Runtime runtime_;
  Arena arena_;
  Proposals result_;
};

ModelOptions draft_options(Numerics numerics, DraftFault fault = DraftFault::kNone) {
  ModelOptions options;
  options.numerics = numerics;
  options.has_drafts = true;
  options.faults.draft = fault;
  return options;
}

/// What the golden README states of these cases: the spread of the reference under noise, as row errors of the logits
/// and as differences of confidence where no id changed. Binary32 against binary64 differs by 1e-7 until one value
/// crosses a grid's threshold, which moves its row by up to 0.6 %.
struct DraftBounds {
  double median;
  double max;
  double confidence;
};
constexpr DraftBounds kOfficialBounds{0.0105, 0.025, 0.06};
constexpr DraftBounds kHpBounds{0.002, 0.0075, 0.02};

struct Errors {
  std::vector<double> logits;
  double confidence = 0;

  [[nodiscard]] bool are_within(const DraftBounds& bounds) const {
    return golden::quantile(logits, 0.5) <= bounds.median && golden::quantile(logits, 1) <= bounds.max &&
           confidence <= bounds.confidence;
  }
};

/// Of everything the case records: base logits always, the rest of those rounds whose ids no noise changed.
Errors compare(const Proposals& actual, const golden::Case& c, const std::string& suffix) {
  Errors errors;
  errors.logits =
      golden::row_errors(actual.base_logits, c.floats("draft_base_logits" + suffix), actual.confidence.size());
  const std::vector<float> confidence = c.floats("confidence" + suffix);
  const std::vector<int64_t> stable = c.ints("stable");
  const size_t block = confidence.size() / stable.size();
  // Behind the Markov bias there are official values only; under hp the bias itself is what is compared.
  const std::vector<float> base = c.floats("draft_base_logits");
  std::vector<float> biased = c.floats("draft_logits");
  const size_t vocab = base.size() / confidence.size();
  for (size_t row = 0; row < confidence.size(); ++row) {
    if (stable[row / block] == 0) continue;
    errors.confidence = std::max(errors.confidence, std::abs(double{actual.confidence[row]} - confidence[row]));
    std::vector<float> bias(vocab);
    std::vector<float> own_bias(vocab);
    for (size_t i = 0; i < vocab; ++i) {
      bias[i] = biased[row * vocab + i] - base[row * vocab + i];
      own_bias[i] = actual.logits[row * vocab + i] - actual.base_logits[row * vocab + i];
    }
    errors.logits.push_back(golden::row_errors(own_bias, bias, 1).front());
  }
  return errors;
}

class GoldenDrafts : public testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] Errors errors_of(const ModelOptions& options, const kernels::KernelTable& table) const {
    const Model model = golden::load_model("ckpt", options);
    return compare(Follower(case_, model, table).run(), case_, options.numerics.round_to_bf16 ? "" : "_hp");
  }
  golden::Case case_{GetParam()};
};

TEST_P(GoldenDrafts, OfficialNumericsStayWithinTheStatedNoiseOnEveryKernelTable) {
  for (const kernels::KernelTable* table : kernels::available_kernels())
    EXPECT_TRUE(errors_of(draft_options(kOfficialNumerics), *table).are_within(kOfficialBounds)) << table->name;
}

TEST_P(GoldenDrafts, HpNumericsAgreeToBinary32Noise) {
  for (const kernels::KernelTable* table : kernels::available_kernels()) {
    if (table->needs_bf16_inputs) continue;
    EXPECT_TRUE(errors_of(draft_options(kHpNumerics), *table).are_within(kHpBounds)) << table->name;
  }
}

TEST_P(GoldenDrafts, StableRoundsGiveTheSameIds) {
  const Model model = golden::load_model("ckpt", draft_options(kOfficialNumerics));
  const Proposals actual = Follower(case_, model, kernels::reference_kernels()).run();
  const std::vector<int64_t> stable = case_.ints("stable");
  const std::vector<int64_t> ids = case_.ints("draft_ids");
  const size_t block = model.draft_head()->block;
  for (size_t round = 0; round < stable.size(); ++round) {
    if (stable[round] == 0) continue;
    EXPECT_EQ(actual.anchors[round], ids[round * (block + 1)]) << "round " << round;
    for (size_t i = 0; i < block; ++i)
      EXPECT_EQ(actual.own_drafts[round * block + i], ids[round * (block + 1) + 1 + i]) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenDrafts, testing::Values("dspark_short", "dspark_long"));

/// A bound that an injected mistake would pass says nothing.
class DraftFaults : public testing::TestWithParam<DraftFault> {};

TEST_P(DraftFaults, FailTheGoldenBounds) {
  // The window slides only where it is full.
  const golden::Case c("dspark_long");
  const Model model = golden::load_model("ckpt", draft_options(kHpNumerics, GetParam()));
  EXPECT_FALSE(compare(Follower(c, model, kernels::reference_kernels()).run(), c, "_hp").are_within(kHpBounds));
}

INSTANTIATE_TEST_SUITE_P(All, DraftFaults,
                         testing::Values(DraftFault::kEarlyTaps, DraftFault::kBackboneExperts,
                                         DraftFault::kPaddingAsNoise, DraftFault::kCausalBlock,
                                         DraftFault::kSlidingRows, DraftFault::kGlobalRope,
                                         DraftFault::kBlockStartsOneEarly, DraftFault::kUnnormalisedInput,
                                         DraftFault::kNormalisedTwice, DraftFault::kBackboneNorm,
                                         DraftFault::kMarkovOfAnchor, DraftFault::kConfidenceBehindNorm));

/// A model that drafts, with what it runs on.
struct Drafter {
  explicit Drafter(const kernels::KernelTable& table = kernels::select_kernels("auto"))
      : runtime{pool, table}, model(golden::load_model("ckpt", draft_options(kOfficialNumerics))) {}

  void read(SequenceState& state, std::span<const InputToken> tokens, int64_t decoder_from = 0) {
    const Arena::Scope scope(arena);
    const ForwardRequest request{&state, tokens, decoder_from, 0};
    (void)forward(model, runtime, arena, {&request, 1});
  }
  std::vector<float> draft(std::span<const DraftRequest> requests) {
    const Arena::Scope scope(arena);
    const DraftBlocks blocks = run_draft_blocks(model, runtime, arena, requests);
    return {blocks.logits.data, blocks.logits.data + blocks.logits.rows * blocks.logits.cols};
  }

  ThreadPool pool{2};
  Runtime runtime;
  Model model;
  Arena arena;
};

TEST(Drafts, BlocksDoNotDependOnTheirNeighboursOrOnChunks) {
  for (const kernels::KernelTable* table : kernels::available_kernels()) {
    Drafter drafter(*table);
    std::vector<SequenceState> states;
    std::vector<DraftRequest> requests;
    std::vector<float> alone;
    for (const size_t length : {size_t{1}, size_t{9}, size_t{40}}) {
      const std::vector<InputToken> tokens = golden::random_tokens(length, static_cast<uint32_t>(length));
      SequenceState whole = drafter.model.new_sequence();
      drafter.read(whole, tokens);
      SequenceState chunked = drafter.model.new_sequence();
      for (size_t begin = 0; begin < length; begin += 7)
        drafter.read(chunked, std::span(tokens).subspan(begin, std::min(size_t{7}, length - begin)));
      EXPECT_TRUE(same_draft_windows(whole, chunked)) << table->name;
      const DraftRequest request{&whole, static_cast<int32_t>(length)};
      const std::vector<float> block = drafter.draft({&request, 1});
      alone.insert(alone.end(), block.begin(), block.end());
      states.push_back(std::move(chunked));
    }
    requests.reserve(states.size());
    for (SequenceState& state : states)
      requests.push_back({&state, static_cast<int32_t>(state.length())});
    EXPECT_EQ(drafter.draft(requests), alone) << table->name;
  }
}

TEST(Drafts, DraftingLeavesTheSequenceAlone) {
  Drafter drafter;
  SequenceState state = drafter.model.new_sequence();
  drafter.read(state, golden::random_tokens(33, 1));
  const SequenceState before = state.fork();
  const DraftRequest request{&state, 5};
  (void)drafter.draft({&request, 1});
  EXPECT_TRUE(same_state(state, before));
  EXPECT_TRUE(same_draft_windows(state, before));
}

TEST(Drafts, WindowsAreTakenBackWithTheSequence) {
  Drafter drafter;
  const std::vector<InputToken> tokens = golden::random_tokens(60, 2);
  for (const size_t taken_back : {size_t{1}, size_t{4}, size_t{13}}) {
    for (const size_t length : {size_t{20}, size_t{31}, size_t{40}}) {
      SequenceState state = drafter.model.new_sequence();
      drafter.read(state, std::span(tokens).first(length));
      drafter.read(state, golden::random_tokens(taken_back, 3));
      state.rollback(static_cast<int64_t>(length));
      SequenceState fresh = drafter.model.new_sequence();
      drafter.read(fresh, std::span(tokens).first(length));
      EXPECT_TRUE(same_state(state, fresh) && same_draft_windows(state, fresh)) << length << ", " << taken_back;
    }
  }
}

/// A sequence that was resumed has no draft windows, which must not keep it from anything but drafting: they begin with
/// the rows that the decoder reads next.
TEST(Drafts, ResumedSequencesDraftOnceTheyHaveReadOn) {
  Drafter drafter;
  const std::vector<InputToken> tokens = golden::random_tokens(300, 4);
  SequenceState cold = drafter.model.new_sequence();
  drafter.read(cold, tokens, 300 - 16);
  const std::vector<std::shared_ptr<const KvBlock>> blocks(cold.blocks().begin(), cold.blocks().begin() + 2);
  // The encoder's exact replay: window + (layers - 1) * (window - 1) positions, here 16 + 4 * 15.
  SequenceState resumed = SequenceState::resume(drafter.model.kv_layout(), std::span(tokens).first(256 - 76), blocks);
  EXPECT_FALSE(has_draft_rows(resumed));
  drafter.read(resumed, std::span(tokens).subspan(256 - 76), 300 - 16);
  EXPECT_TRUE(has_draft_rows(resumed));
  EXPECT_TRUE(same_state(resumed, cold) && same_draft_windows(resumed, cold));
}

TEST(Drafts, ModelsWithoutThemKeepNothingForThem) {
  const Model without = golden::load_model("ckpt");
  EXPECT_EQ(without.draft_head(), nullptr);
  EXPECT_EQ(without.kv_layout()->draft_stages, 0U);
  const Model text_only = golden::load_model("ckpt_textonly", draft_options(kOfficialNumerics));
  EXPECT_EQ(text_only.draft_head(), nullptr);
  SequenceState state = text_only.new_sequence();
  EXPECT_FALSE(has_draft_rows(state));
}

}  // namespace
}  // namespace tidepool
