#include "train/tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "train/name_list.h"
#include "train/tasks_words.h"

namespace tidepool {
namespace {

constexpr std::array<std::string_view, 7> kNames = {"recall", "needle", "copy",    "arithmetic",
                                                    "tools",  "help",   "pictures"};
constexpr int kEffortMax = 100;

void check_options(std::string_view name, const TaskOptions& options) {
  const bool are_lengths = options.length_min >= kTaskLengthMin && options.length_max >= options.length_min &&
                           options.length_max <= kTaskLengthMax;
  if (takes_length(name) && !are_lengths) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("task {}: lengths {} to {}; they must be {} to {} and in order", name, options.length_min,
                            options.length_max, kTaskLengthMin, kTaskLengthMax));
  }
  if (options.words != 0 && (options.words < kTaskWordsMin || options.words > task_words().size())) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("task {}: {} words; they must be {} to {}, or 0 for all", name,
                                                         options.words, kTaskWordsMin, task_words().size()));
  }
  if (options.effort < 0 || options.effort > kEffortMax) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("task {}: effort {}; it must be 1 to {}, or 0 for any", name, options.effort, kEffortMax));
  }
}

}  // namespace

std::span<const std::string_view> task_names() {
  return kNames;
}

bool needs_corpus(std::string_view task) {
  return task == "needle" || task == "copy";
}

bool takes_length(std::string_view task) {
  return task == "recall" || task == "needle" || task == "copy";
}

bool has_pictures(std::string_view task) {
  return task == "pictures";
}

std::unique_ptr<Task> make_task(std::string_view name, const TaskOptions& options, const Tokenizer& tokenizer,
                                const Corpus* corpus) {
  check_options(name, options);
  if (needs_corpus(name) && corpus == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("task {} needs texts: name the folder that tools/fetch_corpus.sh filled", name));
  }
  if (name == "recall") return make_recall_task(options, tokenizer);
  if (name == "needle") return make_needle_task(options, tokenizer, *corpus);
  if (name == "copy") return make_copy_task(options, tokenizer, *corpus);
  if (name == "arithmetic") return make_arithmetic_task(options);
  if (name == "tools") return make_tools_task(options);
  if (name == "help") return make_help_task(options);
  if (name == "pictures") return make_pictures_task(options);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("there is no task \"{}\"; there are: {}", name, name_list(kNames)));
}

}  // namespace tidepool
