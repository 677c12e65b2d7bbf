#include "session/loaded_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "kernels/amx_status.h"
#include "text/engram_token_map.h"

namespace tidepool {
namespace {

constexpr std::string_view kTokenizerFile = "tokenizer.json";

}  // namespace

LoadedModel::LoadedModel(const LoadOptions& options)
    : pool_(options.threads), runtime_{pool_, kernels::select_kernels(options.isa, linear_inputs(options.numerics))} {
  log_info("{} kernels on {} threads; AMX is {}", runtime_.kernels.name, pool_.thread_count(),
           kernels::amx_status_text(kernels::amx_status()));
}

std::unique_ptr<LoadedModel> LoadedModel::load(const LoadOptions& options, const LoadProgress& progress) {
  constexpr size_t kSteps = 3;
  const auto say = [&](std::string_view part, size_t done) {
    if (progress) progress(part, done, kSteps);
  };
  std::unique_ptr<LoadedModel> loaded(new LoadedModel(options));
  say("headers of the checkpoint", 0);
  loaded->checkpoint_ = Checkpoint::open(options.folder);
  say("tokenizer", 1);
  loaded->load_tokenizer();
  loaded->defaults_ = load_generation_defaults(options.folder / "generation_config.json");
  say("weights", 2);
  loaded->model_ = loaded->make_model(
      {.numerics = options.numerics, .kv_formats = options.kv_formats, .has_drafts = options.has_drafts, .faults = {}});
  say("weights", kSteps);
  return loaded;
}

void LoadedModel::load_tokenizer() {
  const std::filesystem::path file = checkpoint_->folder() / kTokenizerFile;
  if (!config().engram && !std::filesystem::exists(file)) return;
  tokenizer_.emplace(Tokenizer::load(file));
  const auto vocab = static_cast<size_t>(config().vocab_size);
  if (tokenizer_->vocabulary_size() > vocab) {
    throw Error(
        ErrorCode::kCorrupt,
        fmt::format("{} has tokens up to id {}, but the embedding of {} has only {} rows; the two do not belong "
                    "together",
                    file.string(), tokenizer_->vocabulary_size() - 1, (checkpoint_->folder() / "config.json").string(),
                    vocab));
  }
  if (!config().engram) return;
  token_map_ = make_engram_token_map(*tokenizer_).compressed_ids;
  // Embedding rows behind the tokenizer's last id stand for no text. They hash like padding.
  const auto pad = static_cast<size_t>(config().engram->pad_token_id);
  if (pad < token_map_.size()) token_map_.resize(vocab, token_map_[pad]);
}

const Tokenizer& LoadedModel::tokenizer() const {
  if (tokenizer_) return *tokenizer_;
  throw Error(ErrorCode::kNotFound, fmt::format("{} has no {}: put the released one beside config.json, or work on ids "
                                                "(run --prompt-ids)",
                                                checkpoint_->folder().string(), kTokenizerFile));
}

std::vector<int32_t> LoadedModel::stop_ids() const {
  std::vector<int32_t> ids = defaults_.stop_ids;
  const auto end = static_cast<int32_t>(config().eos_token_id);
  if (std::ranges::find(ids, end) == ids.end()) ids.push_back(end);
  return ids;
}

std::unique_ptr<const Model> LoadedModel::make_model(const ModelOptions& options) const {
  return std::make_unique<const Model>(checkpoint_, token_map_, options);
}

}  // namespace tidepool
