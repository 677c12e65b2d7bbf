#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "apps/command.h"
#include "apps/engine_flags.h"
#include "apps/output.h"
#include "base/error.h"
#include "engine/trace.h"
#include "formats/safetensors.h"
#include "text/json.h"

namespace tidepool {
namespace {

constexpr const char* kTraceExamples =
    "Examples:\n"
    "  tidepool trace MODEL --case prefill_64.safetensors --out answer.safetensors\n"
    "  tidepool trace MODEL --case decode_20_64.safetensors --out answer.safetensors --numerics hp --chunk 7\n"
    "  tidepool trace MODEL --case prefill_257.safetensors --out answer.safetensors --isa reference --threads 1 "
    "--json\n"
    "\n"
    "The case names tensors; those the engine can compute are written under the same names (docs/vectors.md).";

struct TraceFlags {
  EngineFlags engine;
  std::string test_case;
  std::string out;
  std::string numerics;
  bool wants_json = false;
};

TraceOptions::Numerics numerics_of(const std::string& name) {
  if (name == "official") return TraceOptions::Numerics::kOfficial;
  if (name == "hp") return TraceOptions::Numerics::kHp;
  return TraceOptions::Numerics::kByName;
}

TraceResult compute(const TraceFlags& flags) {
  const SafetensorsFile test_case(flags.test_case);
  const bool has_drafts = is_draft_case(test_case);
  // Loaded for the numerics that ask more of the kernels, unless only the official ones are wanted.
  EngineFlags engine = flags.engine;
  engine.numerics = flags.numerics == "official" ? "official" : "hp";
  const std::unique_ptr<LoadedModel> model = load_model(engine);
  const auto with = [&](const Numerics& numerics) {
    return model->make_model({.numerics = numerics, .kv_formats = {}, .has_drafts = has_drafts, .faults = {}});
  };
  const std::unique_ptr<const Model> official = with(kOfficialNumerics);
  const std::unique_ptr<const Model> hp = with(kHpNumerics);
  Numerics without_grid = kHpNumerics;
  without_grid.quantise_activations = false;
  const std::unique_ptr<const Model> without_activation_grid = with(without_grid);
  const TraceSetup setup{*official, *hp, *without_activation_grid, model->runtime()};
  TraceOptions options;
  options.numerics = numerics_of(flags.numerics);
  options.replay = parse_replay(flags.engine.replay);
  options.chunk = flags.engine.chunk;
  return trace_case(setup, test_case, options);
}

void report(const TraceFlags& flags, const TraceResult& result) {
  Output output(Output::kStandardOutput);
  if (!flags.wants_json) {
    std::string names;
    for (const std::string& name : result.not_computed)
      names += (names.empty() ? "" : ", ") + name;
    output.write(fmt::format("{}: {} tensors\n", flags.out, result.tensors.size()));
    if (!names.empty()) output.write(fmt::format("not computed (inputs, spreads, known faults): {}\n", names));
    return;
  }
  const auto names_json = [](const auto& list, auto name_of) {
    Json::Array names;
    for (const auto& element : list)
      names.push_back(Json::make_string(name_of(element)));
    return Json::make_array(std::move(names));
  };
  Json object = Json::make_object();
  object.set("out", Json::make_string(flags.out));
  object.set("tensors", names_json(result.tensors, [](const TraceTensor& tensor) { return tensor.name; }));
  object.set("not_computed", names_json(result.not_computed, [](const std::string& name) { return name; }));
  output.write(write_json(object) + "\n");
}

/// Before minutes of work, not behind them: the output must not take the place of something it was made from.
void check_output(const TraceFlags& flags) {
  namespace fs = std::filesystem;
  std::error_code missing;  // what is not there yet is equal to nothing
  const fs::path out = fs::absolute(flags.out);
  const bool is_case = fs::equivalent(out, flags.test_case, missing);
  const bool is_in_model = fs::equivalent(out.parent_path(), flags.engine.model, missing);
  if (is_case || is_in_model) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--out {}: would {}; name another file", flags.out,
                            is_case ? "replace the case" : "write into the model's folder"));
  }
  if (flags.out.empty() || !fs::is_directory(out.parent_path(), missing)) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("--out \"{}\": no such folder to write into; make it first", flags.out));
  }
}

int trace(const TraceFlags& flags) {
  check_output(flags);
  const TraceResult result = compute(flags);
  std::vector<TensorToWrite> tensors;
  tensors.reserve(result.tensors.size());
  for (const TraceTensor& tensor : result.tensors)
    tensors.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.data});
  write_safetensors(flags.out, tensors);
  report(flags, result);
  return kExitOk;
}

}  // namespace

void add_trace_command(CLI::App& program, Invocation& invocation) {
  CLI::App* command = program.add_subcommand("trace", "check the arithmetic: a case in, the engine's tensors out");
  const auto flags = std::make_shared<TraceFlags>();
  flags->engine.replay = "full";
  add_model_argument(*command, flags->engine.model);
  command->add_option("--case", flags->test_case, "safetensors file that names the tensors to compute")->required();
  command->add_option("--out", flags->out, "safetensors file to write")->required();
  command
      ->add_option("--numerics", flags->numerics,
                   "official or hp for every tensor; default: as each tensor's name says")
      ->check(CLI::IsMember({"official", "hp"}));
  command->add_option("--replay", flags->engine.replay, "how much of a prompt the decoder reads")
      ->check(CLI::IsMember({"full", "exact", "bounded"}))
      ->capture_default_str();
  command->add_option("--chunk", flags->engine.chunk, "prompt tokens per forward pass")
      ->check(CLI::Range(size_t{1}, kChunkMax))
      ->capture_default_str();
  add_kernel_flags(*command, flags->engine);
  command->add_flag("--json", flags->wants_json, "the names of the tensors as JSON on standard output");
  command->footer(kTraceExamples);
  command->callback([flags, &invocation] {
    invocation.wants_json = flags->wants_json;
    invocation.body = [flags] { return trace(*flags); };
  });
}

}  // namespace tidepool
