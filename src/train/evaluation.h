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
  Replay replay = Replay::kBounded;  ///< of the tests that write answers; texts are read in full
  size_t chunk = 512;
  /// Prompt and answer together; nothing: what the model was made for.
  std::optional<int64_t> context_max{};
  /// Wrong answers to keep of each test, the first ones.
  size_t wrong_shown = 0;
};

/// A test: a task of held-out items under one condition, or text to predict.
struct EvaluationTest {
  std::string name{};  ///< "recall_16k"
  std::string task{};  ///< of make_task; empty: bits per byte of held-out texts
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
  std::optional<TextCost> text;                 ///< of the test of texts
  std::map<std::string, TextCost> text_groups;  ///< by source of the corpus
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
  void run_task(const EvaluationTest& test, const Progress& progress, EvaluationResult& result);
  void run_text(const Progress& progress, EvaluationResult& result);
  [[nodiscard]] double bits_of(const std::vector<int32_t>& ids);
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
