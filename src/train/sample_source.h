#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "text/tokenizer.h"
#include "train/corpus.h"
#include "train/tasks.h"
#include "train/token_batch.h"

namespace tidepool {

/// Samples by their place in an endless row: any place can be asked for, at any time, and always gives the same.
/// Immutable.
class SampleSource {
 public:
  explicit SampleSource(std::string name) : name_(std::move(name)) {}
  SampleSource(const SampleSource&) = delete;
  SampleSource& operator=(const SampleSource&) = delete;
  virtual ~SampleSource() = default;

  /// What messages call it.
  [[nodiscard]] const std::string& name() const { return name_; }
  /// At least two tokens.
  [[nodiscard]] virtual Sample make(uint64_t place) const = 0;

 private:
  std::string name_;
};

/// The items of a task, in order.
[[nodiscard]] std::unique_ptr<SampleSource> make_task_source(std::string name, std::unique_ptr<Task> task, Split split,
                                                             uint64_t seed, const SampleEncoding& encoding);

struct TextSourceOptions {
  Split split = Split::kTrain;
  uint64_t seed = 0;
  /// Tokens of a sample at most, at least 2.
  size_t length_max = 0;
};

/// Documents, all of them once and in random order, then again in another one. A document is the begin of sentence, its
/// text and the end of sentence; one that is too long is cut beforehand into equal parts, each of which begins a
/// sentence. Everything is to be learnt. Tokenizes the documents on `pool`. Throws Error(kInvalidArgument) when there
/// are none.
[[nodiscard]] std::unique_ptr<SampleSource> make_text_source(const CorpusSource& source,
                                                             const TextSourceOptions& options,
                                                             const Tokenizer& tokenizer, ThreadPool& pool);

}  // namespace tidepool
