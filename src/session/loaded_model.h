#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "formats/checkpoint.h"
#include "kernels/runtime.h"
#include "model/model.h"
#include "session/generation_defaults.h"
#include "text/tokenizer.h"

namespace tidepool {

struct LoadOptions {
  std::filesystem::path folder;
  /// 0: one per physical core.
  size_t threads = 0;
  /// Name of the kernels, or "auto": the best that the numerics allow.
  std::string isa = "auto";
  Numerics numerics = kOfficialNumerics;
  KvFormats kv_formats{};
  /// Whether the draft head is made ready, where the checkpoint has one.
  bool has_drafts = false;
};

/// `part` is being loaded; `done` of `total` steps are over.
using LoadProgress = std::function<void(std::string_view part, size_t done, size_t total)>;

/// A model folder made ready to run: checkpoint, tokenizer, Engram's token map, threads and kernels, in one place.
/// The parts are immutable; arithmetic on them runs one forward pass at a time, as there is one pool of threads.
class LoadedModel {
 public:
  /// Throws Error as the parts do. A folder without tokenizer.json loads when the model can run on ids alone, that is,
  /// when it has no Engram.
  [[nodiscard]] static std::unique_ptr<LoadedModel> load(const LoadOptions& options, const LoadProgress& progress = {});

  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;
  ~LoadedModel() = default;

  [[nodiscard]] const Checkpoint& checkpoint() const { return *checkpoint_; }
  [[nodiscard]] const ModelConfig& config() const { return checkpoint_->config(); }
  [[nodiscard]] const Model& model() const { return *model_; }
  [[nodiscard]] const Runtime& runtime() const { return runtime_; }
  [[nodiscard]] bool has_tokenizer() const { return tokenizer_.has_value(); }
  /// Throws Error(kNotFound) when the folder has none.
  [[nodiscard]] const Tokenizer& tokenizer() const;
  /// What generation_config.json recommends.
  [[nodiscard]] const GenerationDefaults& defaults() const { return defaults_; }
  /// The tokens that end an output: the config's and those generation_config.json adds.
  [[nodiscard]] std::vector<int32_t> stop_ids() const;
  /// The same checkpoint under other numerics. Those that keep binary32 do not run on every kernel
  /// (kernels::select_kernels).
  [[nodiscard]] std::unique_ptr<const Model> make_model(const ModelOptions& options) const;

 private:
  explicit LoadedModel(const LoadOptions& options);
  void load_tokenizer();

  ThreadPool pool_;
  Runtime runtime_;
  std::shared_ptr<const Checkpoint> checkpoint_;
  std::optional<Tokenizer> tokenizer_;
  std::vector<int32_t> token_map_;  ///< Engram's; [vocab_size], empty without Engram
  GenerationDefaults defaults_;
  std::unique_ptr<const Model> model_;
};

}  // namespace tidepool
