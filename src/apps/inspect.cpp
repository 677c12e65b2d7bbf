#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "apps/checkpoint_report.h"
#include "apps/command.h"
#include "apps/engine_flags.h"
#include "apps/inspect_json.h"
#include "apps/output.h"
#include "base/log.h"
#include "kernels/amx_status.h"

namespace tidepool {
namespace {

constexpr const char* kInspectExamples =
    "Examples:\n"
    "  tidepool inspect MODEL\n"
    "  tidepool inspect MODEL --json | jq .parts\n"
    "  tidepool inspect MODEL --json | jq -r .memory.verdict\n"
    "\n"
    "Reads config.json and the headers of the safetensors files, not the weights; no tokenizer is needed.";

struct InspectFlags {
  EngineFlags engine;
  bool wants_json = false;
};

std::string id_or_dash(int64_t id) {
  return id < 0 ? "-" : std::to_string(id);
}

std::string config_text(const ModelConfig& config) {
  std::string text = "Config\n";
  const auto line = [&](std::string_view name, const std::string& value) {
    text += fmt::format("  {:<22}{}\n", name, value);
  };
  line("layers", std::to_string(config.num_hidden_layers));
  line("hidden size", fmt::format("{}, in {} residual streams", config.hidden_size, config.hc_mult));
  line("vocabulary", format_count(static_cast<uint64_t>(config.vocab_size)));
  line("attention", fmt::format("{} heads of {}, window {}, top {} of global entries", config.num_attention_heads,
                                config.head_dim, config.sliding_window, config.index_topk));
  line("experts", fmt::format("{} and {} shared, {} for each token, inner size {}", config.n_routed_experts,
                              config.n_shared_experts, config.num_experts_per_tok, config.moe_intermediate_size));
  line("context", fmt::format("{} tokens", format_count(static_cast<uint64_t>(config.max_position_embeddings))));
  if (config.engram) {
    line("Engram", fmt::format("layers {}, up to {}-grams, {} heads of {}", fmt::join(config.engram->layer_ids, ", "),
                               config.engram->max_ngram_size, config.engram->n_heads, config.engram->head_dim));
  }
  if (config.dspark) {
    line("DSpark", fmt::format("{} stages, blocks of {}, taps at layers {}", config.dspark->num_layers,
                               config.dspark->block_size, fmt::join(config.dspark->target_layer_ids, ", ")));
  }
  if (config.vision) {
    line("vision",
         fmt::format("{} layers of {}, patches of {}, at most {} tokens an image", config.vision->num_hidden_layers,
                     config.vision->hidden_size, config.vision->patch_size, config.vision->max_image_tokens));
  }
  for (const std::string& key : config.unknown_keys)
    line("unknown key", printable(key));
  return text;
}

std::string layers_text(const CheckpointReport& report) {
  std::string text = fmt::format("\nLayers\n  {:>5}  {:<8}{:>5}  {:>9}  {:>12}  {:<10}  {:>16}  {}\n", "layer", "mode",
                                 "ratio", "KV source", "index source", "candidates", "Engram rows", "half");
  for (const LayerPlan& layer : report.layers.layers) {
    const std::string_view candidates = layer.makes_candidates ? "makes" : layer.uses_candidates ? "uses" : "-";
    std::string engram = "-";
    if (layer.engram_slot >= 0) {
      engram = format_count(
          static_cast<uint64_t>(report.config.engram->num_embeddings[static_cast<size_t>(layer.engram_slot)]));
    }
    text += fmt::format("  {:>5}  {:<8}{:>5}  {:>9}  {:>12}  {:<10}  {:>16}  {}\n", layer.index,
                        layer_mode_name(layer.mode), layer.ratio == 0 ? "-" : std::to_string(layer.ratio),
                        id_or_dash(layer.kv_source_layer), id_or_dash(layer.index_source_layer), candidates, engram,
                        layer.is_decoder ? "decoder" : "encoder");
  }
  return text;
}

/// The way the release is named, "552B and 196B of Engram memory": whole billions, of the memory only full ones.
/// Nothing for models that have no billions to count, or no Engram.
std::string release_size_text(const CheckpointReport& report) {
  constexpr uint64_t kBillion = 1'000'000'000;
  uint64_t backbone = 0;
  uint64_t engram = 0;
  for (const PartSize& part : report.parts) {
    if (part.name == "backbone") backbone = part.parameters;
    if (part.name == "Engram tables") engram = part.parameters;
  }
  if (backbone < kBillion || engram < kBillion) return "";
  return fmt::format("  in short: {}B and {}B of Engram memory\n", (backbone + kBillion / 2) / kBillion,
                     engram / kBillion);
}

std::string sizes_text(const CheckpointReport& report) {
  std::string text = fmt::format("\nParameters\n  {:<20}{:>9}{:>20}{:>12}\n", "part", "", "exactly", "on disk");
  PartSize total;
  for (const PartSize& part : report.parts) {
    total.parameters += part.parameters;
    total.bytes += part.bytes;
    text += fmt::format("  {:<20}{:>9}{:>20}{:>12}\n", part.name, format_parameters(part.parameters),
                        format_count(part.parameters), format_bytes(part.bytes));
  }
  text += fmt::format("  {:<20}{:>9}{:>20}{:>12}\n", "total", format_parameters(total.parameters),
                      format_count(total.parameters), format_bytes(total.bytes));
  text += release_size_text(report);
  text += fmt::format("\nBytes by type\n  {:<10}{:>9}{:>20}\n", "type", "tensors", "bytes");
  for (const DtypeSize& dtype : report.dtypes)
    text += fmt::format("  {:<10}{:>9}{:>20}\n", dtype_name(dtype.dtype), format_count(dtype.tensors),
                        format_count(dtype.bytes));
  text += fmt::format("  {:<10}{:>9}{:>20}\n", "total", format_count(report.tensors), format_count(total.bytes));
  return text;
}

std::string plan_text(const CheckpointReport& report, const InspectedEngine& engine) {
  const MemoryPlan& plan = report.plan;
  std::string text = "\nMemory\n";
  const auto line = [&](const std::string& name, const std::string& value) {
    text += fmt::format("  {:<24}{}\n", name, value);
  };
  line("weights", fmt::format("{}, mapped from the files", format_bytes(plan.weight_bytes)));
  line("KV of a token", fmt::format("{} bytes", plan.token_bytes));
  for (const ContextSize& context : plan.contexts) {
    line(fmt::format("KV of {}", format_count(static_cast<uint64_t>(context.tokens))), format_bytes(context.kv_bytes));
  }
  line("a sequence beside it", format_bytes(plan.sequence_bytes));
  line("memory of this machine", fmt::format("{}, {} available", format_bytes(plan.machine.memory_total),
                                             format_bytes(plan.machine.memory_available)));
  line("disk of the model",
       fmt::format("{}, {} free", format_bytes(plan.machine.disk_total), format_bytes(plan.machine.disk_free)));
  line("kernels", fmt::format("{} on {} threads (this processor runs {})", engine.kernels, engine.threads,
                              fmt::join(engine.available_kernels, ", ")));
  line("AMX", engine.amx);
  return text + fmt::format("\n{}\n", plan.verdict);
}

InspectedEngine look_at_engine(const EngineFlags& flags) {
  InspectedEngine engine;
  engine.kernels = kernels::select_kernels(flags.isa).name;
  engine.threads = ThreadPool(flags.threads).thread_count();
  for (const kernels::KernelTable* table : kernels::available_kernels())
    engine.available_kernels.emplace_back(table->name);
  engine.amx = kernels::amx_status_text(kernels::amx_status());
  return engine;
}

int inspect(const InspectFlags& flags) {
  const InspectedEngine engine = look_at_engine(flags.engine);
  const std::shared_ptr<const Checkpoint> checkpoint = Checkpoint::open(flags.engine.model);
  const CheckpointReport report = make_checkpoint_report(*checkpoint, look_at_machine(checkpoint->folder()));
  Output output(Output::kStandardOutput);
  if (flags.wants_json) {
    output.write(write_json(inspect_json(report, engine)) + "\n");
    return kExitOk;
  }
  output.write(fmt::format("{}\n\n", printable(checkpoint->folder().string())) + config_text(report.config) +
               layers_text(report) + sizes_text(report) + plan_text(report, engine));
  return kExitOk;
}

}  // namespace

void add_inspect_command(CLI::App& program, Invocation& invocation) {
  CLI::App* command = program.add_subcommand("inspect", "what a checkpoint holds, and the memory it needs here");
  const auto flags = std::make_shared<InspectFlags>();
  add_model_argument(*command, flags->engine.model);
  add_kernel_flags(*command, flags->engine);
  command->add_flag("--json", flags->wants_json, "one JSON object on standard output (docs/commands.md)");
  command->footer(kInspectExamples);
  command->callback([flags, &invocation] {
    invocation.wants_json = flags->wants_json;
    invocation.body = [flags] { return inspect(*flags); };
  });
}

}  // namespace tidepool
