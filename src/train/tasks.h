#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "text/tokenizer.h"
#include "train/corpus.h"
#include "train/dialogue.h"

namespace tidepool {

/// Which item of a task. Items of one task and seed differ by index; those of the two splits share no key, problem,
/// request, question or scene.
struct TaskItem {
  Split split = Split::kTrain;
  uint64_t seed = 0;
  uint64_t index = 0;
};

/// A generator of dialogues with known answers. Immutable, and the same item is the same dialogue, always.
class Task {
 public:
  Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  virtual ~Task() = default;

  [[nodiscard]] virtual Dialogue make(const TaskItem& item) const = 0;
};

/// Tokens of an item. With fewer, not even one pair and one question fit; the most is twice what the longest test asks
/// for.
inline constexpr size_t kTaskLengthMin = 64;
inline constexpr size_t kTaskLengthMax = size_t{1} << 17;

struct TaskOptions {
  /// Tokens of a whole item, for the tasks that have a length: each item's is drawn between these, all scales equally
  /// often.
  size_t length_min = 256;
  size_t length_max = 1024;
  /// Reasoning effort of arithmetic, 1 to 100; 0: each item draws one.
  int effort = 0;
  /// How questions are asked about one context: many in one conversation, to learn from; or this many items that share
  /// a context, with one question each, to measure with (the context is then read once). 0: in one conversation.
  size_t questions_per_context = 0;
  /// Keys and values of `recall` are among so many words; 0: all. The fewer there are, the less it helps to know which
  /// words a list has, and the sooner looking up is learnt. (docs/pocket.md)
  size_t words = 0;
  /// Share of the words of a question that are left out, in every second item that is learnt from; `help` alone. A
  /// model that reads whole questions finds the answers of those it has seen; one that reads what is left of them,
  /// others too.
  double word_dropout = 0;
};

/// Names of all tasks: recall, needle, copy, arithmetic, tools, help, pictures.
[[nodiscard]] std::span<const std::string_view> task_names();

/// Whether a task takes texts of a corpus.
[[nodiscard]] bool needs_corpus(std::string_view task);

/// Whether the items of a task are as long as its options say; the others are as long as they are.
[[nodiscard]] bool takes_length(std::string_view task);

/// Whether a task shows pictures: only for a model that can see.
[[nodiscard]] bool has_pictures(std::string_view task);

/// The task of that name. What is borrowed must outlive it; `corpus` may be null where the task needs none. Throws
/// Error(kInvalidArgument): an unknown name, lengths or effort out of range, a corpus that is missing or has no
/// document that is long enough.
[[nodiscard]] std::unique_ptr<Task> make_task(std::string_view name, const TaskOptions& options,
                                              const Tokenizer& tokenizer, const Corpus* corpus);

/// Multi-query recall of pairs: lines of a key and its value, both words, in long contexts among lines of digits, and
/// questions for single ones.
[[nodiscard]] std::unique_ptr<Task> make_recall_task(const TaskOptions& options, const Tokenizer& tokenizer);
/// The same lines, few, hidden in pages of the corpus.
[[nodiscard]] std::unique_ptr<Task> make_needle_task(const TaskOptions& options, const Tokenizer& tokenizer,
                                                     const Corpus& corpus);
/// A passage of the corpus that is to be repeated.
[[nodiscard]] std::unique_ptr<Task> make_copy_task(const TaskOptions& options, const Tokenizer& tokenizer,
                                                   const Corpus& corpus);
/// Sums, differences and products; the reasoning shows as many steps as the effort asks for.
[[nodiscard]] std::unique_ptr<Task> make_arithmetic_task(const TaskOptions& options);
/// Requests to a few small tools, their calls, and what to say to the results. With `questions_per_context` every item
/// is a request that needs calls.
[[nodiscard]] std::unique_ptr<Task> make_tools_task(const TaskOptions& options);
/// Questions about Tidepool's own commands and options.
[[nodiscard]] std::unique_ptr<Task> make_help_task(const TaskOptions& options);
/// Small drawings of one or two shapes, and questions about them. With `questions_per_context` every item has one.
[[nodiscard]] std::unique_ptr<Task> make_pictures_task(const TaskOptions& options);

}  // namespace tidepool
