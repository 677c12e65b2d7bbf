#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/temp_folder.h"
#include "cli_program.h"

namespace tidepool {
namespace {

using testing::HasSubstr;

/// A recipe for the golden model's shape, with texts of its own.
class TrainingFolder {
 public:
  explicit TrainingFolder(int steps) {
    for (const char* file : {"config.json", "tokenizer.json"})
      std::filesystem::copy_file(golden("ckpt/") + file, path() / file);
    write_file_atomically(
        path() / "manifest.json",
        R"({"format": 1, "sources": [{"name": "tales", "train": {"file": "t"}, "heldout": {"file": "h"}}]})");
    std::string lines;
    for (int i = 0; i < 30; ++i)
      lines += R"({"name": "n", "text": "The cat sat by the hat. The rat sat on the mat. The cat saw the rat.\n"})"
               "\n";
    write_file_atomically(path() / "t", lines);
    write_file_atomically(path() / "h", lines);
    write_recipe("recipe.json", steps, "");
  }
  void write_recipe(const char* name, int steps, const std::string& more) const {
    write_file_atomically(path() / name,
                          R"({"format": 1, "name": "tiny", "seed": 1, "stages": [{"name": "first", "tokens": )" +
                              std::to_string(128 * steps) + R"(, "step_rows": 128, "batch_rows": 128, )" + more +
                              R"("rate": {"peak": 0.01, "last": 0.001, "warm_up": 0, "flat": 0.5, "cosine": 1},
                "mixture": [{"texts": "all", "weight": 1, "length": 100}]}]})");
  }
  [[nodiscard]] const std::filesystem::path& path() const { return folder_.path(); }
  [[nodiscard]] ProgramResult train(const std::string& recipe, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"train",         "model", (path() / recipe).string(), "--corpus",
                                          path().string(), "--out", (path() / "run").string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_tidepool(arguments);
  }

 private:
  TempFolder folder_;
};

TEST(CliTrainModel, LeavesAModelThatTheEngineRuns) {
  const TrainingFolder folder(2);
  const ProgramResult result = folder.train("recipe.json");
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("first 2/2  loss "));
  EXPECT_THAT(result.err, HasSubstr("done; the model is in"));
  for (const char* file : {"log.jsonl", "loss.svg", "state.safetensors"})
    EXPECT_TRUE(std::filesystem::exists(folder.path() / "run" / file)) << file;
  const std::string model = (folder.path() / "run/model").string();
  EXPECT_EQ(run_tidepool({"run", model, "--prompt-ids", "0,17,42", "--max-tokens", "2", "--json"}).status, 0);

  // Once more: there is nothing left to do.
  const ProgramResult again = folder.train("recipe.json");
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_THAT(again.err, HasSubstr("done; the model is in"));
}

TEST(CliTrainModel, GivesALineOfJsonAStep) {
  const TrainingFolder folder(2);
  const ProgramResult result = folder.train("recipe.json", {"--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const Json first = parse_json(result.out.substr(0, result.out.find('\n')));
  EXPECT_EQ(at(first, "stage_name").as_string(), "first");
  EXPECT_EQ(at(first, "step").try_int64(), 1);
  EXPECT_GT(at(first, "loss").as_double(), 0);
}

TEST(CliTrainModel, MistakesAreNamed) {
  const TrainingFolder folder(1);
  EXPECT_THAT(folder.train("nowhere.json").err, HasSubstr("nowhere.json"));
  EXPECT_EQ(folder.train("nowhere.json").status, 1);
  EXPECT_EQ(run_tidepool({"train", "model", (folder.path() / "recipe.json").string()}).status, 2);
  folder.write_recipe("other.json", 1, R"("rats": 1, )");
  EXPECT_THAT(folder.train("other.json").err, HasSubstr("rats"));
  // Another recipe in the folder of a run.
  ASSERT_EQ(folder.train("recipe.json").status, 0);
  folder.write_recipe("recipe.json", 2, "");
  EXPECT_THAT(folder.train("recipe.json").err, HasSubstr("belongs to another recipe"));
}

}  // namespace
}  // namespace tidepool
