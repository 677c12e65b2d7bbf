#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "train/fake_quant.h"
#include "train/optimizer.h"
#include "train/schedule.h"

namespace tidepool {

/// A share of what a stage learns from: texts or a task.
struct RecipePart {
  std::string texts;        ///< a source of the corpus, or "all": every one by its size; empty: a task
  std::string task;         ///< of make_task; empty: texts
  double weight = 1;        ///< of its tokens among those of the stage
  double loss_weight = 1;   ///< of each of its tokens to be learnt: answers are few among the tokens of a long prompt
  size_t length_min = 0;    ///< tokens of a sample, of tasks that have a length
  size_t length_max = 0;    ///< the same, and of texts, which are cut to it
  size_t words = 0;         ///< of the lists of `recall`; 0: all there are
  double word_dropout = 0;  ///< of the questions of `help`
};

/// A part of a run with one mixture and one schedule.
struct RecipeStage {
  enum class Trains : uint8_t {
    kModel,
    kDrafts,  ///< the draft head alone; the rest stands still
  };
  /// What the decoder reads of a prompt, by the engine's words.
  enum class Replay : uint8_t {
    kBounded,  ///< its last window
    kFull,     ///< all of it, as in a decoder-only stack
  };
  /// When the learning rate changes, in shares of the stage's steps.
  struct Rate {
    double peak = 0;
    double last = 0;
    double warm_up = 0;  ///< up to `peak` until here
    double flat = 0;     ///< at `peak` until here
    double cosine = 1;   ///< down to `last` until here
  };

  std::string name;
  int64_t tokens = 0;     ///< to learn from, if all batches were full: this decides how many steps there are
  size_t step_rows = 0;   ///< rows between two updates of the parameters, a multiple of batch_rows
  size_t batch_rows = 0;  ///< rows of one pass forward and back; no sample is longer
  Rate rate;
  double clip_norm = 0;  ///< gradients are scaled down to this norm, all together; 0: never
  MatrixOptimizer optimizer = MatrixOptimizer::kMuon;
  Qat rounding;
  double exploration = 0.25;  ///< entries drawn beside those an indexer chooses, as a share of them
  Replay replay = Replay::kBounded;
  size_t sliding_window = 0;  ///< rows of a window while the stage runs; 0: the config's
  Trains trains = Trains::kModel;
  std::vector<RecipePart> mixture;

  [[nodiscard]] int64_t steps() const;
  [[nodiscard]] LearningRateSchedule schedule() const;
};

/// How a model is trained. (docs/training.md, "Recipes")
struct Recipe {
  std::string name;
  uint64_t seed = 0;                                   ///< of the first values, the data and its order
  std::filesystem::path config = "config.json";        ///< of the model; beside the recipe
  std::filesystem::path tokenizer = "tokenizer.json";  ///< the same
  std::vector<RecipeStage> stages;
};

/// Reads a recipe; `name` stands for it in messages. Throws Error(kInvalidArgument) that names the place
/// ("stages[1].mixture[0].weight"), what is there and what may be. An unknown key is refused: it would be a mistyped
/// one. Whether sources and lengths fit a corpus and a model is not known here.
[[nodiscard]] Recipe parse_recipe(std::string_view json, const std::string& name);

/// Reads it from a file. Throws Error as read_file and parse_recipe.
[[nodiscard]] Recipe load_recipe(const std::filesystem::path& file);

}  // namespace tidepool
