#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <stop_token>
#include <string>

#include "apps/command.h"
#include "apps/engine_flags.h"
#include "apps/interrupts.h"
#include "apps/machine.h"
#include "apps/output.h"
#include "apps/train_commands.h"
#include "base/error.h"
#include "base/file.h"
#include "base/thread_pool.h"
#include "kv/sha256.h"
#include "text/json.h"
#include "text/tokenizer.h"
#include "train/parameter_set.h"
#include "train/training_run.h"

namespace tidepool {
namespace {

constexpr const char* kTrainModelExamples =
    "Examples:\n"
    "  tools/fetch_corpus.sh corpus\n"
    "  tidepool train model models/pocket/recipe.json --corpus corpus --out run\n"
    "  tidepool train model models/pocket/recipe.json --corpus corpus --out run     # goes on where it was stopped\n"
    "  tidepool eval run/model\n"
    "\n"
    "Ctrl-C saves the state and ends; the same command goes on from there, and ends with the same bits as a run that\n"
    "was never stopped. In the folder come to lie: model/ (behind each stage), log.jsonl (a line a step), loss.svg,\n"
    "state.safetensors. docs/training.md says what a recipe is.";

/// A day: whoever wants no saves at all loses at most that.
constexpr double kSaveSecondsMax = 86'400;
constexpr uint64_t kFileBytesMax = uint64_t{256} << 20U;

struct TrainModelFlags {
  std::string recipe;
  std::string corpus;
  std::string out;
  size_t threads = 0;
  double save_seconds = 120;
  bool is_exact = false;
  bool wants_json = false;
};

std::string hex(const Digest& digest) {
  std::string text;
  text.reserve(2 * digest.size());
  for (const std::byte byte : digest)
    text += fmt::format("{:02x}", std::to_integer<int>(byte));
  return text;
}

/// Of all that decides what comes out.
std::string digest_of(std::string_view recipe, std::string_view config, std::string_view tokenizer,
                      const std::optional<Corpus>& corpus, bool is_exact) {
  FieldHasher hasher("tidepool training run");
  hasher.add(recipe).add(config).add(tokenizer);
  if (corpus) {
    for (const CorpusSource& source : corpus->sources()) {
      hasher.add(std::string_view(source.name)).add(static_cast<int64_t>(source.train.size()));
      for (const CorpusDocument& document : source.train)
        hasher.add(std::string_view(document.name)).add(std::string_view(document.text));
    }
  }
  hasher.add(std::string_view(is_exact ? "float32" : "bf16"));
  return hex(hasher.finish());
}

/// Refuses a model that cannot be trained here, before memory is taken for it.
void check_memory(const ModelConfig& config, const std::string& config_file) {
  // Masters, gradients and momenta in binary32; what a batch takes comes on top.
  constexpr double kBytesPerParameter = 12;
  const auto parameters = static_cast<double>(parameter_count(config));
  const double needed = kBytesPerParameter * parameters;
  const auto available = static_cast<double>(look_at_machine(config_file).memory_available);
  if (available == 0 || needed <= available) return;
  throw Error(ErrorCode::kResourceExhausted,
              fmt::format("{}: training {:.1f} M parameters takes {:.1f} GB and more for each batch, and {:.1f} GB of "
                          "memory are available; make the model smaller",
                          config_file, parameters / 1e6, needed / 1e9, available / 1e9));
}

std::string time_left(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  const auto minutes = static_cast<int64_t>(seconds / 60);
  if (minutes < 1) return fmt::format("{:.0f} s", seconds);
  if (minutes < 60) return fmt::format("{} min", minutes);
  return fmt::format("{} h {:02} min", minutes / 60, minutes % 60);
}

/// What a terminal shows in one line, and a log now and then.
class ProgressLine {
 public:
  explicit ProgressLine(bool as_json) : as_json_(as_json) {}

  void show(const TrainingProgress& progress) {
    const TrainingStep& step = progress.step;
    if (as_json_) return Output(Output::kStandardOutput).write(log_line(step) + "\n");
    const std::string line =
        fmt::format("{} {}/{}  loss {:.4f}  {:.0f} tokens/s  {} left", step.stage_name, step.step, progress.stage_steps,
                    step.loss, step.tokens_per_second, time_left(progress.seconds_left));
    if (error_.is_terminal()) return error_.write(fmt::format("\r\x1b[K{}", line));
    const auto now = std::chrono::steady_clock::now();
    if (step.step != progress.stage_steps && shown_ && now - *shown_ < kLogInterval) return;
    shown_ = now;
    error_.write(line + "\n");
  }
  void finish() const {
    if (!as_json_ && error_.is_terminal()) error_.write("\n");
  }

 private:
  static constexpr std::chrono::seconds kLogInterval{10};

  bool as_json_;
  Output error_{Output::kStandardError};
  std::optional<std::chrono::steady_clock::time_point> shown_;
};

/// `file` as the recipe names it: beside the recipe, unless it is absolute.
std::filesystem::path beside(const std::filesystem::path& recipe, const std::filesystem::path& file) {
  return recipe.parent_path() / file;
}

int train_model(const TrainModelFlags& flags) {
  std::stop_source stop;
  const Interrupts interrupts([&] { stop.request_stop(); });
  const Recipe recipe = load_recipe(flags.recipe);
  const std::filesystem::path config_file = beside(flags.recipe, recipe.config);
  const std::filesystem::path tokenizer_file = beside(flags.recipe, recipe.tokenizer);
  const ModelConfig config = load_config(config_file);
  check_memory(config, config_file.string());
  const std::string tokenizer_json = read_file(tokenizer_file, kFileBytesMax);
  const Tokenizer tokenizer = Tokenizer::parse(tokenizer_json, tokenizer_file.string());
  std::optional<Corpus> corpus;
  if (!flags.corpus.empty()) corpus = Corpus::load(flags.corpus);

  ThreadPool pool(flags.threads);
  const TrainingInputs inputs{recipe,
                              config,
                              tokenizer,
                              tokenizer_json,
                              corpus ? &*corpus : nullptr,
                              digest_of(read_file(flags.recipe, kFileBytesMax), read_file(config_file, kFileBytesMax),
                                        tokenizer_json, corpus, flags.is_exact)};
  TrainingRunOptions options;
  options.folder = flags.out;
  options.precision = flags.is_exact ? kernels::GemmPrecision::kFloat32 : kernels::GemmPrecision::kBf16;
  options.save_interval = std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(flags.save_seconds));
  TrainingRun run(inputs, options, pool);
  const Output error(Output::kStandardError);
  error.write(fmt::format("tidepool: training {}: {:.2f} M parameters, {} threads{}\n", recipe.name,
                          static_cast<double>(run.parameter_count()) / 1e6, pool.thread_count(),
                          run.steps_before() > 0 ? fmt::format(", going on behind step {}", run.steps_before()) : ""));
  ProgressLine line(flags.wants_json);
  const bool is_done = run.run(stop.get_token(), [&](const TrainingProgress& progress) { line.show(progress); });
  line.finish();
  if (!is_done) {
    error.write(
        fmt::format("tidepool: stopped; the state is in {}, and the same command goes on from it\n", flags.out));
    return kExitInterrupted;
  }
  error.write(
      fmt::format("tidepool: done; the model is in {}\n", (std::filesystem::path(flags.out) / "model").string()));
  return kExitOk;
}

}  // namespace

void add_train_model_command(CLI::App& train, Invocation& invocation) {
  CLI::App* command = train.add_subcommand("model", "train a model by a recipe");
  const auto flags = std::make_shared<TrainModelFlags>();
  command->add_option("RECIPE", flags->recipe, "a recipe, as models/pocket/recipe.json is one")->required();
  command->add_option("--out", flags->out, "folder for the model, its state and its log")->required();
  command->add_option("--corpus", flags->corpus, "folder that tools/fetch_corpus.sh filled, for recipes with texts");
  command->add_option("--threads", flags->threads, "threads; 0 is one per physical core")
      ->check(CLI::Range(size_t{0}, kThreadsMax))
      ->capture_default_str();
  command->add_option("--save-seconds", flags->save_seconds, "how often the state is saved")
      ->check(CLI::Range(1.0, kSaveSecondsMax))
      ->capture_default_str();
  command->add_flag("--float32", flags->is_exact, "multiply in binary32 instead of bfloat16: slower, for comparisons");
  command->add_flag("--json", flags->wants_json, "a line of JSON a step on standard output");
  command->footer(kTrainModelExamples);
  command->callback([flags, &invocation] {
    invocation.wants_json = flags->wants_json;
    invocation.body = [flags] {
      try {
        return train_model(*flags);
      } catch (const std::bad_alloc&) {
        throw Error(ErrorCode::kResourceExhausted,
                    "out of memory; smaller batch_rows in the recipe, or a smaller model, need less");
      }
    };
  });
}

}  // namespace tidepool
