// A training run that is killed at one moment after another and started again: it ends, bit for bit, with what a run
// ends with that nobody stopped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/temp_folder.h"
#include "cli_program.h"
#include "formats/safetensors.h"

namespace tidepool {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint64_t kFirstSteps = 8;
constexpr uint64_t kSecondSteps = 72;
constexpr uint64_t kDraftSteps = 12;
constexpr size_t kStepRows = 128;

/// What the golden model's config says otherwise here: a step takes a twentieth of the time.
constexpr const char* kSmallerShape = R"({
  "hidden_size": 32, "moe_intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "head_dim": 32,
  "q_lora_rank": 32, "o_lora_rank": 32, "o_groups": 1, "n_routed_experts": 4, "compress_ratios": [0, 2, 1, 1, 0],
  "kv_source_layer_ids": [1, 2], "index_source_layer_ids": [1, 2], "index_n_heads": 2, "candidate_source_layer_id": 2,
  "hc_mult": 2, "engram_layer_ids": [1], "engram_num_embeddings": [384], "num_nextn_predict_layers": 1,
  "dspark_target_layer_ids": [1, 2, 3]
})";

std::string smaller_config() {
  Json config = parse_json(read_file(golden("ckpt/config.json"), uint64_t{1} << 20U));
  Json text = at(config, "text_config");
  const Json smaller = parse_json(kSmallerShape);
  for (const JsonMember& member : smaller.as_object())
    text.set(member.key, member.value);
  config.set("text_config", std::move(text));
  return write_json(config);
}

std::string stage_text(const std::string& name, uint64_t steps, const std::string& more) {
  return R"({"name": ")" + name + R"(", "tokens": )" + std::to_string(kStepRows * steps) + R"(, "step_rows": )" +
         std::to_string(kStepRows) + R"(, "batch_rows": 64, )" + more +
         R"("rate": {"peak": 0.01, "last": 0.001, "warm_up": 0, "flat": 0.5, "cosine": 1},
             "mixture": [{"task": "recall", "weight": 1, "length": 64}]})";
}

/// Where a run is: stage and step.
using StepPlace = std::pair<uint64_t, uint64_t>;

uint64_t count_in(const Json& object, std::string_view key) {
  return static_cast<uint64_t>(at(object, key).try_int64().value());
}

/// While it lives, a child of this process that makes a file longer than `bytes` is ended in the middle of the write
/// (SIGXFSZ): a kill at a byte that is known.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(uint64_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &size_before_);
    ::getrlimit(RLIMIT_CORE, &core_before_);
    const rlimit size{bytes, size_before_.rlim_max};
    const rlimit core{0, core_before_.rlim_max};  // the signal would leave one
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &size), 0);
    EXPECT_EQ(::setrlimit(RLIMIT_CORE, &core), 0);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &size_before_);
    ::setrlimit(RLIMIT_CORE, &core_before_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit size_before_{};
  rlimit core_before_{};
};

/// One recipe, a run of it that nobody stops, and one that is killed.
class KilledTraining {
 public:
  KilledTraining() {
    std::filesystem::copy_file(golden("ckpt/tokenizer.json"), folder_ / "tokenizer.json");
    write_file_atomically(folder_ / "config.json", smaller_config());
    write_file_atomically(folder_ / "recipe.json",
                          R"({"format": 1, "name": "tiny", "seed": 1, "stages": [)" +
                              stage_text("first", kFirstSteps, "") + "," +
                              stage_text("second", kSecondSteps, R"("rounding": "all", )") + "," +
                              stage_text("drafts", kDraftSteps, R"("trains": "drafts", )") + "]}");
  }
  [[nodiscard]] std::filesystem::path whole(const std::string& file) const { return folder_ / "whole" / file; }
  [[nodiscard]] std::filesystem::path killed(const std::string& file) const { return folder_ / "killed" / file; }
  [[nodiscard]] uint64_t kills() const { return kills_; }
  /// Steps behind which each start went on that was killed or stopped.
  [[nodiscard]] const std::vector<uint64_t>& resumed() const { return resumed_; }

  void run_whole() { finish("whole"); }
  void finish_killed() { finish("killed"); }
  /// Starts the run and kills it when so many of this start's lines have come.
  void kill_behind_lines(size_t lines) {
    PipedProgram trainer(command("killed"));
    note_start(trainer.read_line().value_or("no line"));
    for (size_t i = 0; i < lines; ++i)
      (void)trainer.read_line();
    note_kill(trainer.kill());
  }
  /// Starts the run and kills it when its line says that this step is done, or a later one.
  void kill_at(const StepPlace& place) {
    PipedProgram trainer(command("killed"));
    note_start(trainer.read_line().value_or("no line"));
    while (const std::optional<std::string> line = trainer.read_line()) {
      const Json step = parse_json(*line);
      if (StepPlace{count_in(step, "stage"), count_in(step, "step")} >= place) break;
    }
    note_kill(trainer.kill());
  }
  /// Starts the run; the system ends it where a file of it would be longer than this.
  void end_in_a_file_at(uint64_t bytes) {
    const FileSizeLimit limit(bytes);
    const ProgramResult result = run_tidepool(command("killed"));
    note_start(result.err);
    EXPECT_EQ(result.status, -1) << result.err;
    EXPECT_TRUE(has_unfinished_files()) << "the limit did not end it within a file";
    note_kill(result.status == -1);
  }
  /// Starts the run and stops it with Ctrl-C when so many of this start's lines have come.
  void interrupt_behind_lines(size_t lines) {
    PipedProgram trainer(command("killed"));
    note_start(trainer.read_line().value_or("no line"));
    for (size_t i = 0; i < lines; ++i)
      (void)trainer.read_line();
    trainer.interrupt();
    EXPECT_EQ(trainer.wait(), 130);
  }

 private:
  [[nodiscard]] bool has_unfinished_files() const {
    const std::filesystem::recursive_directory_iterator all(killed(""));
    return std::any_of(begin(all), end(all), [](const std::filesystem::directory_entry& file) {
      return file.path().filename().string().find(".tmp.") != std::string::npos;
    });
  }
  [[nodiscard]] std::vector<std::string> command(const std::string& out) const {
    return {"train",
            "model",
            (folder_ / "recipe.json").string(),
            "--out",
            (folder_ / out).string(),
            "--json",
            "--save-seconds",
            "1",
            "--threads",
            "1"};
  }
  void finish(const std::string& out) const {
    const ProgramResult result = run_tidepool(command(out));
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("done; the model is in"));
  }
  void note_start(const std::string& said) {
    EXPECT_THAT(said, HasSubstr("training tiny: "));
    const std::string behind = "going on behind step ";
    const size_t found = said.find(behind);
    const uint64_t steps = found == std::string::npos ? 0 : std::stoull(said.substr(found + behind.size()));
    EXPECT_GE(steps, resumed_.empty() ? 0 : resumed_.back());  // a state that was saved is never lost
    resumed_.push_back(steps);
  }
  void note_kill(bool was_alive) { kills_ += was_alive ? 1 : 0; }

  TempFolder folder_;
  uint64_t kills_ = 0;
  std::vector<uint64_t> resumed_;
};

std::string all_bytes(const std::filesystem::path& file) {
  return read_file(file, uint64_t{1} << 30U);
}

/// The lines of a log without what depends on the time they took.
std::vector<std::string> timeless_log(const std::filesystem::path& file) {
  std::vector<std::string> lines;
  std::istringstream text(all_bytes(file));
  for (std::string line; std::getline(text, line);) {
    Json step = parse_json(line);
    step.set("tokens_per_second", Json());
    lines.push_back(write_json(step));
  }
  return lines;
}

/// All that a state holds, by name, without the time that the steps took.
std::map<std::string, std::string> timeless_state(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  std::map<std::string, std::string> fields(file.metadata().begin(), file.metadata().end());
  EXPECT_EQ(fields.erase("seconds"), 1U);
  for (const SafetensorsFile::Entry& entry : file.entries()) {
    const TensorView tensor = file.tensor(entry);
    fields[entry.name].assign(reinterpret_cast<const char*>(tensor.data), tensor.bytes);
  }
  return fields;
}

/// Names of what only one of the two has, and of what they do not have alike.
std::vector<std::string> differences(std::map<std::string, std::string> a,
                                     const std::map<std::string, std::string>& b) {
  std::vector<std::string> names;
  for (const auto& [name, value] : b) {
    const auto found = a.find(name);
    if (found == a.end() || found->second != value) names.push_back(name);
    if (found != a.end()) a.erase(found);
  }
  for (const auto& [name, value] : a)
    names.push_back(name);
  return names;
}

void expect_same_log(const KilledTraining& training) {
  const std::vector<std::string> whole = timeless_log(training.whole("log.jsonl"));
  const std::vector<std::string> killed = timeless_log(training.killed("log.jsonl"));
  ASSERT_EQ(whole.size(), kFirstSteps + kSecondSteps + kDraftSteps);
  ASSERT_EQ(killed.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i)
    ASSERT_EQ(whole[i], killed[i]);  // what follows the first difference says nothing more
}

std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(folder))
    names.insert(file.path().filename().string());
  return names;
}

void expect_same_end(const KilledTraining& training) {
  expect_same_log(training);
  EXPECT_THAT(differences(timeless_state(training.whole("state.safetensors")),
                          timeless_state(training.killed("state.safetensors"))),
              IsEmpty());
  EXPECT_TRUE(all_bytes(training.whole("loss.svg")) == all_bytes(training.killed("loss.svg")));
  EXPECT_EQ(names_in(training.killed("")), names_in(training.whole("")));
  EXPECT_EQ(names_in(training.killed("model")), names_in(training.whole("model")));
  EXPECT_EQ(names_in(training.whole("model")).size(), 4U);
  for (const std::string& name : names_in(training.whole("model"))) {
    const std::string file = "model/" + name;
    EXPECT_TRUE(all_bytes(training.whole(file)) == all_bytes(training.killed(file))) << file;
  }
}

TEST(SlowCliTrainModel, KilledAgainAndAgainItEndsWithTheSameBits) {
  KilledTraining training;
  training.run_whole();
  const uint64_t in_shard = std::filesystem::file_size(training.whole("model/model-00001-of-00001.safetensors")) / 2;
  const uint64_t in_state = std::filesystem::file_size(training.whole("state.safetensors")) / 2;
  ASSERT_GT(in_state, 2 * in_shard);  // so the model is written before that limit ends the run

  // Before anything is saved, unless the machine takes a second for these steps.
  training.kill_behind_lines(0);
  training.kill_behind_lines(3);
  // Where the first stage ends: in the exported model, in the state behind it, and where the signal then comes.
  training.end_in_a_file_at(in_shard);
  training.end_in_a_file_at(in_state);
  training.kill_at({0, kFirstSteps});
  // A line of the second stage means that the state of its begin is saved; Ctrl-C then saves one of its middle.
  training.kill_at({1, 1});
  training.interrupt_behind_lines(3);
  EXPECT_GE(training.resumed().back(), kFirstSteps);
  // Gone on from the middle: after each kill the log is further than the state. The last of these starts takes longer
  // than a second on most machines, and so also saves by the clock.
  training.kill_behind_lines(4);
  EXPECT_GE(training.resumed().back(), kFirstSteps + 3);
  training.kill_behind_lines(0);
  training.kill_at({1, kSecondSteps - 8});
  EXPECT_LT(training.resumed().back(), kFirstSteps + kSecondSteps);
  training.end_in_a_file_at(in_state);
  // In the stage of the draft head, and behind the last step of all.
  training.kill_at({2, 1});
  training.kill_at({2, kDraftSteps});
  training.finish_killed();

  RecordProperty("kills", static_cast<int>(training.kills()));
  RecordProperty("gone_on_behind", testing::PrintToString(training.resumed()));
  EXPECT_GE(training.kills(), 11U);  // the last may come too late
  expect_same_end(training);
}

}  // namespace
}  // namespace tidepool
