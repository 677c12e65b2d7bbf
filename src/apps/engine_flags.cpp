#include "apps/engine_flags.h"

#include <CLI/CLI.hpp>

#include "apps/progress.h"

namespace tidepool {
namespace {

/// Rows as they come to the cache, which under the official numerics are bfloat16 values.
constexpr KvFormats kUnroundedRows{RowFormat::kFloat32, RowFormat::kFloat32, RowFormat::kFloat32};

}  // namespace

void add_model_argument(CLI::App& command, std::string& model) {
  command.add_option("MODEL", model, "folder with config.json, tokenizer.json and the safetensors files")->required();
}

void add_kernel_flags(CLI::App& command, EngineFlags& flags) {
  command.add_option("--threads", flags.threads, "threads for arithmetic; 0 is one per physical core")
      ->check(CLI::Range(size_t{0}, kThreadsMax))
      ->capture_default_str();
  command
      .add_option("--isa", flags.isa,
                  "kernels: auto, or one that inspect lists (amx, avx512bf16, avx512, avx2, reference)")
      ->capture_default_str();
}

void add_engine_flags(CLI::App& command, EngineFlags& flags) {
  add_model_argument(command, flags.model);
  add_kernel_flags(command, flags);
  command
      .add_option("--numerics", flags.numerics, "official: rounded as in the released code; hp: binary32 throughout")
      ->check(CLI::IsMember({"official", "hp"}))
      ->capture_default_str();
  command
      .add_option("--replay", flags.replay,
                  "how much of a prompt the decoder reads: bounded (the last window, as published), exact (as much as "
                  "could matter), full")
      ->check(CLI::IsMember({"bounded", "exact", "full"}))
      ->capture_default_str();
  command.add_option("--chunk", flags.chunk, "prompt tokens per forward pass")
      ->check(CLI::Range(size_t{1}, kChunkMax))
      ->capture_default_str();
  command.add_option("--max-model-len", flags.max_model_len,
                     "longest prompt and answer together; default: what the model was made for");
}

void add_kv_cache_dtype_flag(CLI::App& command, EngineFlags& flags) {
  command
      .add_option("--kv-cache-dtype", flags.kv_cache_dtype,
                  "auto: the model's own formats, FP8 windows with FP4 entries and index keys; bfloat16: rows (and the "
                  "index queries that meet them) as they are before these")
      ->check(CLI::IsMember({"auto", "bfloat16"}))
      ->capture_default_str();
}

void add_draft_flag(CLI::App& command, EngineFlags& flags) {
  flags.draft = "auto";
  command
      .add_option("--draft", flags.draft,
                  "tokens the model's draft head proposes in each step: off, auto (as many as pay), or a number; none "
                  "without a draft head")
      ->capture_default_str();
}

DraftOptions draft_options(const EngineFlags& flags, bool is_seeded) {
  DraftOptions options = parse_draft_options(flags.draft);
  options.is_repeatable = is_seeded;
  return options;
}

std::unique_ptr<LoadedModel> load_model(const EngineFlags& flags, const LoadProgress& progress) {
  LoadOptions options;
  options.folder = flags.model;
  options.threads = flags.threads;
  options.isa = flags.isa;
  options.numerics = flags.numerics == "hp" ? kHpNumerics : kOfficialNumerics;
  if (flags.kv_cache_dtype == "bfloat16") options.kv_formats = kUnroundedRows;
  options.has_drafts = parse_draft_options(flags.draft).mode != DraftOptions::Mode::kOff;
  Progress bar;
  std::unique_ptr<LoadedModel> model =
      LoadedModel::load(options, [&](std::string_view part, size_t done, size_t total) {
        bar.update(part, done, total);
        if (progress) progress(part, done, total);
      });
  bar.finish();
  return model;
}

void apply_engine_flags(const EngineFlags& flags, GenerationOptions& options) {
  options.context_max = flags.max_model_len;
  options.replay = parse_replay(flags.replay);
  options.chunk = flags.chunk;
}

}  // namespace tidepool
