#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "base/thread_pool.h"
#include "formats/config.h"
#include "kernels/gemm.h"
#include "text/tokenizer.h"
#include "train/corpus.h"
#include "train/recipe.h"
#include "train/token_batch.h"
#include "train/training_log.h"

namespace tidepool {

/// What a model is trained from. Everything borrowed outlives the run.
struct TrainingInputs {
  const Recipe& recipe;
  const ModelConfig& config;
  const Tokenizer& tokenizer;
  std::string tokenizer_json;      ///< what that was read from; goes into the exported model
  const Corpus* corpus = nullptr;  ///< null where the recipe needs no texts
  /// Of all of these: a run goes on only with what it began with.
  std::string digest;
};

struct TrainingRunOptions {
  std::filesystem::path folder;  ///< state.safetensors, log.jsonl, loss.svg and model/ come to lie here
  kernels::GemmPrecision precision = kernels::GemmPrecision::kBf16;
  std::chrono::steady_clock::duration save_interval = std::chrono::minutes(2);
  std::function<std::chrono::steady_clock::time_point()> clock = &std::chrono::steady_clock::now;
};

/// How far a run is.
struct TrainingProgress {
  const TrainingStep& step;
  uint64_t stage_steps = 0;
  /// Of the whole run, at the mean speed so far, if all batches were full; so about a percent of it is left at the end.
  double seconds_left = 0;
};

/// A recipe, carried out: all stages one after the other, the state saved now and then, the model exported behind each
/// stage. Started again in the same folder it goes on from the last saved state and ends with the same bits as a run
/// that never stopped, on any number of threads.
class TrainingRun {
 public:
  /// Goes on where the folder has a state. Throws Error: what does not fit together (vocabulary, lengths, a folder of
  /// another recipe), or cannot be read or written.
  TrainingRun(const TrainingInputs& inputs, TrainingRunOptions options, ThreadPool& pool);
  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;
  ~TrainingRun();

  /// Steps done before this start, in all stages.
  [[nodiscard]] uint64_t steps_before() const;
  /// Values that are trained, all stages.
  [[nodiscard]] size_t parameter_count() const;

  /// Trains to the end, or until `stop` is asked for; then the state is saved. True at the end. Throws Error(kIo), and
  /// Error(kNumeric) when the loss is no number any more.
  bool run(const std::stop_token& stop, const std::function<void(const TrainingProgress&)>& on_step);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Lets each sample's decoder begin with the last window of what is given before its first token to be learnt: prompts
/// skip the decoder, as at inference.
void skip_prompts(TokenBatch& batch, size_t window);

}  // namespace tidepool
