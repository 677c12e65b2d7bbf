#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/prefill.h"
#include "kv/kv_cache.h"
#include "session/conversation.h"
#include "session/loaded_model.h"
#include "train/corpus.h"
#include "train/tasks.h"

namespace tidepool {

struct EvaluationOptions {
  size_t items = 200;  ///< of each test
  uint64_t seed = 1;
  Replay replay = Replay::kBounded;  ///< of the tests that write answers; texts are read as their tests say
  size_t chunk = 512;
  /// Prompt and answer together; nothing: what the model was made for.
  std::optional<int64_t> context_max{};
  /// Which items of tasks: held-out ones, or new ones of the kind that was learnt from, to tell what a model has learnt
  /// from what it has learnt by heart. Texts are held out in any case.
  Split split = Split::kHeldout;
  /// Of how many words the lists of recall are, as TaskOptions::words; 0: all.
  size_t words = 0;
  /// Wrong answers to keep of each test, the first ones.
  size_t wrong_shown = 0;
  /// Also writes each right answer, for what it costs the model: that tells models apart which get nothing right.
  bool measures_answer_bits = false;
};

/// A test: a task of held-out items under one condition, or something that is measured on held-out texts.
struct EvaluationTest {
  enum class Kind : uint8_t {
    kAnswers,  ///< how many items of a task are answered right
    kText,     ///< bits per byte
    kReplay,   ///< what bounded replay changes: the divergence of the next token's distribution from exact replay's
  };
  std::string name{};  ///< "recall_16k"
  Kind kind = Kind::kAnswers;
  std::string task{};  ///< of make_task; empty for the other kinds
  size_t length = 0;   ///< tokens of an item, where the task has lengths
  int effort = 0;      ///< of arithmetic
  size_t sharing = 0;  ///< items that share a context
};

/// All there are, in the order in which they are shown. (docs/eval.md)
[[nodiscard]] const std::vector<EvaluationTest>& evaluation_tests();

/// Those of the given names, each the name of a test or what stands before a "_" in one or more; all for no names. In
/// the order of evaluation_tests(). Throws Error(kInvalidArgument) naming a name that is none.
[[nodiscard]] std::vector<EvaluationTest> choose_evaluation_tests(const std::vector<std::string>& names);

/// Whether the test needs a corpus.
[[nodiscard]] bool needs_corpus(const EvaluationTest& test);

/// An answer that was not right.
struct WrongAnswer {
  std::string question;  ///< the end of the prompt
  std::string expected;
  std::string got;
};

/// Bits that texts cost a model.
struct TextCost {
  double bits = 0;
  uint64_t bytes = 0;
  [[nodiscard]] double bits_per_byte() const { return bytes == 0 ? 0 : bits / static_cast<double>(bytes); }
};

/// How the next token's distribution p behind a prompt, by exact replay, differs from the q of bounded replay.
struct ReplayCost {
  std::vector<double> divergences;  ///< KL(p || q) of each prompt, in nats
  size_t same_tokens = 0;           ///< prompts behind which both find the same token most likely
  [[nodiscard]] double mean() const;
  /// The least divergence that a share of the prompts, `share` in (0, 1], does not exceed; 0 without prompts.
  [[nodiscard]] double quantile(double share) const;
};

/// What came of a test.
struct EvaluationResult {
  /// Items and how many of them were answered right.
  struct Share {
    size_t items = 0;
    size_t right = 0;
  };
  std::string name;
  std::optional<std::string> skipped;  ///< why nothing was measured
  Share all;
  size_t well_formed = 0;
  size_t ended = 0;     ///< the model ended its turn by itself
  size_t too_long = 0;  ///< items that do not fit the context; they count as wrong
  uint64_t prompt_tokens = 0;
  uint64_t output_tokens = 0;
  std::map<std::string, Share> groups;
  double answer_bits = 0;                       ///< of the right answers and their ends, where they were measured
  uint64_t answer_tokens = 0;                   ///< of these
  std::optional<TextCost> text;                 ///< of the test of texts
  std::map<std::string, TextCost> text_groups;  ///< by source of the corpus
  std::optional<ReplayCost> replay;             ///< of the test of replays
  std::vector<WrongAnswer> wrong;
};

/// Runs tests on a model, through the engine: answers are greedy, and items that share a context find it in the cache.
/// What it borrows must outlive it. One thread at a time.
class Evaluation {
 public:
  /// `corpus` may be null: tests that need one are then skipped.
  Evaluation(const LoadedModel& model, KvCache& cache, const Corpus* corpus, const EvaluationOptions& options);

  using Progress = std::function<void(size_t done, size_t total)>;
  /// Throws Error as the engine does.
  [[nodiscard]] EvaluationResult run(const EvaluationTest& test, const Progress& progress = {});

  /// Control tokens of the chat format that the tokenizer lacks, as seen so far; their names went in as text.
  [[nodiscard]] const std::vector<std::string>& missing_control_tokens() const { return missing_; }

 private:
  [[nodiscard]] std::optional<std::string> reason_to_skip(const EvaluationTest& test) const;
  void answer(const Dialogue& dialogue, EvaluationResult& result);
  void measure_answer(TurnRequest turn, const Dialogue& dialogue, EvaluationResult& result);
  void run_task(const EvaluationTest& test, const Progress& progress, EvaluationResult& result);
  struct HeldoutText;
  void for_texts(const Progress& progress, const std::function<void(const HeldoutText&)>& body) const;
  void run_text(const Progress& progress, EvaluationResult& result);
  void run_replay(const Progress& progress, EvaluationResult& result);
  [[nodiscard]] double bits_of(const std::vector<InputToken>& tokens);
  [[nodiscard]] std::vector<float> last_logits(const std::vector<InputToken>& tokens, Replay replay);
  [[nodiscard]] int64_t context_max() const;

  const LoadedModel& model_;
  const Corpus* corpus_;
  EvaluationOptions options_;
  Conversation conversation_;
  Arena arena_;
  std::vector<std::string> missing_;
};

/// Adds an output to what came of a test: the scorer without a model.
void count_answer(const Dialogue& dialogue, const Completion& output, bool has_ended, EvaluationResult& result);

}  // namespace tidepool
