#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "apps/command.h"
#include "apps/engine_flags.h"
#include "apps/output.h"
#include "base/file.h"
#include "bench/suite.h"
#include "kv/disk_store.h"

namespace tidepool {
namespace {

constexpr const char* kBenchExamples =
    "Examples:\n"
    "  tidepool bench kernels\n"
    "  tidepool bench kernels --only decode_step_cut4\n"
    "  tidepool bench kernels --isa all --json\n"
    "  tidepool bench kernels --plot roofline.svg\n"
    "  tidepool bench kv --kv-dir FOLDER\n"
    "\n"
    "Each figure stands beside the limit of this machine that bounds it, measured by turns with it (docs/bench.md).\n"
    "The whole suite takes five minutes at most and 9 GB of memory; what has no time in them is named.";

struct BenchFlags {
  std::string suite = "kernels";
  EngineFlags engine;
  std::string only;
  std::string plot;
  std::string kv_dir;
  bool wants_json = false;
};

std::vector<std::string> instruction_sets(const std::string& isa) {
  if (isa != "all") return {isa};
  std::vector<std::string> names;
  for (const kernels::KernelTable* table : kernels::available_kernels()) {
    // The reference is the meaning of the others, a hundred times slower: nobody waits for it unasked.
    if (table != &kernels::reference_kernels()) names.emplace_back(table->name);
  }
  if (names.empty()) names.emplace_back(kernels::reference_kernels().name);
  return names;
}

bench::SuiteResult measure(const BenchFlags& flags, const std::string& isa) {
  const Output progress(Output::kStandardError);
  bench::SuiteOptions options;
  options.threads = flags.engine.threads;
  options.isa = isa;
  options.only = flags.only;
  options.suite = flags.suite;
  if (flags.suite == "kv") options.storage = flags.kv_dir;
  if (flags.suite == "kv" && flags.kv_dir.empty()) options.storage = default_store_folder().parent_path();
  options.on_start = [&](std::string_view name) {
    if (progress.is_terminal()) progress.write(fmt::format("measuring {} ...\n", name));
  };
  return bench::run_suite(options);
}

int run_bench(const BenchFlags& flags) {
  const Output output(Output::kStandardOutput);
  const std::vector<std::string> sets = instruction_sets(flags.engine.isa);
  const bool is_list = flags.wants_json && flags.engine.isa == "all";
  for (size_t i = 0; i < sets.size(); ++i) {
    const bench::SuiteResult result = measure(flags, sets[i]);
    if (is_list) output.write(i == 0 ? "[\n" : ",\n");
    output.write(flags.wants_json ? bench::to_json(result) + (is_list ? "" : "\n") : bench::to_table(result) + "\n");
    if (!flags.plot.empty() && i == 0) write_file_atomically(flags.plot, bench::to_svg(result));
  }
  if (is_list) output.write("\n]\n");
  return kExitOk;
}

}  // namespace

void add_bench_command(CLI::App& program, Invocation& invocation) {
  CLI::App* command = program.add_subcommand("bench", "measure this machine and how near its limits the kernels come");
  const auto flags = std::make_shared<BenchFlags>();
  command->add_option("suite", flags->suite, "what to measure")
      ->check(CLI::IsMember({"kernels", "kv"}))
      ->capture_default_str();
  command->add_option("--only", flags->only, "one result, by its name");
  command->add_option("--kv-dir", flags->kv_dir, "where `bench kv` makes its folder, and removes it; the cache folder");
  command->add_option("--plot", flags->plot, "also draw a roofline and the shares, as SVG, into this file");
  command->add_option("--isa", flags->engine.isa, "kernels to use: auto, a name, or all, one after the other")
      ->capture_default_str();
  command->add_option("--threads", flags->engine.threads, "threads; 0 is one per physical core")
      ->check(CLI::Range(size_t{0}, kThreadsMax))
      ->capture_default_str();
  command->add_flag("--json", flags->wants_json, "a JSON document on standard output");
  command->footer(kBenchExamples);
  command->callback([flags, &invocation] {
    invocation.wants_json = flags->wants_json;
    invocation.body = [flags] { return run_bench(*flags); };
  });
}

}  // namespace tidepool
