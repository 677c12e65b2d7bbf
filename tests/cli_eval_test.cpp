#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/temp_folder.h"
#include "cli_program.h"

namespace tidepool {
namespace {

using testing::HasSubstr;

ProgramResult evaluate(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"eval", golden("ckpt")});
  return run_tidepool(arguments);
}

/// A folder as tools/fetch_corpus.sh leaves it.
class SmallCorpus {
 public:
  SmallCorpus() {
    write_file_atomically(
        path() / "manifest.json",
        R"({"format": 1, "sources": [{"name": "tales", "train": {"file": "t"}, "heldout": {"file": "h"}}]})");
    std::string lines;
    for (int i = 0; i < 200; ++i) {
      lines += R"({"name": "n", "text": "the tale of the cat and the hat and the rat at the mat number )" +
               std::string(1, static_cast<char>('a' + i % 26)) + "\\n\"}\n";
    }
    write_file_atomically(path() / "t", lines);
    write_file_atomically(path() / "h", lines);
  }
  [[nodiscard]] const std::filesystem::path& path() const { return folder_.path(); }

 private:
  TempFolder folder_;
};

TEST(CliEval, GivesOneJsonObject) {
  const ProgramResult result = evaluate({"--task", "arithmetic_10", "recall", "--items", "2", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const Json object = result.json();
  EXPECT_EQ(at(object, "items").try_int64(), 2);
  const Json& arithmetic = at(at(object, "tests"), "arithmetic_10");
  EXPECT_EQ(at(arithmetic, "items").try_int64(), 2);
  EXPECT_EQ(at(arithmetic, "right").try_int64(), 0);
  EXPECT_EQ(at(arithmetic, "accuracy").as_double(), 0);
  EXPECT_THAT(at(at(at(object, "tests"), "recall_4k"), "skipped").as_string(), HasSubstr("1024"));
  EXPECT_EQ(at(object, "tests").as_object().size(), 5);
  EXPECT_FALSE(at(object, "missing_control_tokens").as_array().empty());  // the tiny tokenizer has few
}

TEST(CliEval, ListsCanBeOfFewWords) {
  const ProgramResult result = evaluate({"--task", "recall_256", "--items", "5", "--words", "16", "--show-wrong", "5",
                                         "--max-model-len", "512", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const Json object = result.json();
  const Json& wrong = at(at(at(object, "tests"), "recall_256"), "wrong");
  ASSERT_EQ(wrong.as_array().size(), 5);  // it has not learnt anything
  for (const Json& answer : wrong.as_array()) {
    const std::string line = at(answer, "expected").as_string();
    EXPECT_LE(line, "cable canal");  // the fifteenth and sixteenth in the alphabet
    EXPECT_LE(line.substr(line.find(' ') + 1), "canyon");
  }
  const ProgramResult refused = evaluate({"--task", "recall_256", "--words", "15", "--max-model-len", "512"});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("task recall: 15 words; they must be 16 to 125, or 0 for all"));
}

TEST(CliEval, AsksWhatTrainingAsksIfTold) {
  const auto expected = [](const std::string& split) {
    const ProgramResult result = evaluate({"--task", "recall_256", "--items", "25", "--split", split, "--show-wrong",
                                           "25", "--max-model-len", "512", "--json"});
    EXPECT_EQ(result.status, 0) << result.err;
    const Json object = result.json();
    std::set<std::string> lines;
    for (const Json& answer : at(at(at(object, "tests"), "recall_256"), "wrong").as_array())
      lines.insert(at(answer, "expected").as_string());
    return lines;
  };
  const std::set<std::string> train = expected("train");
  const std::set<std::string> heldout = expected("heldout");
  EXPECT_FALSE(train.empty());
  for (const std::string& line : heldout)
    EXPECT_FALSE(train.contains(line)) << line;  // a pair is of one split
  EXPECT_EQ(evaluate({"--split", "test"}).status, 2);
}

TEST(CliEval, ReadsTheTextsOfACorpus) {
  const SmallCorpus corpus;
  const ProgramResult result = evaluate({"--task", "text", "--items", "3", "--corpus", corpus.path().string()});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("bits per byte of 3 documents (tales "));
}

/// Random weights, so what the formats change is large.
TEST(CliEval, TheCacheMayKeepItsRowsUnrounded) {
  const SmallCorpus corpus;
  const auto bits = [&](const char* dtype) {
    const ProgramResult result = evaluate(
        {"--task", "text", "--items", "2", "--corpus", corpus.path().string(), "--json", "--kv-cache-dtype", dtype});
    EXPECT_EQ(result.status, 0) << result.err;
    return at(at(at(result.json(), "tests"), "text"), "bits_per_byte").as_double();
  };
  EXPECT_NE(bits("auto"), bits("bfloat16"));
  EXPECT_NEAR(bits("auto"), bits("bfloat16"), 0.5);
  EXPECT_EQ(evaluate({"--kv-cache-dtype", "fp8"}).status, 2);
}

TEST(CliEval, SaysHowFarBoundedReplayIsFromExact) {
  const SmallCorpus corpus;
  const ProgramResult result =
      evaluate({"--task", "replay", "--items", "3", "--corpus", corpus.path().string(), "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const Json object = result.json();
  const Json& replay = at(at(object, "tests"), "replay");
  EXPECT_EQ(at(replay, "prompts").try_int64(), 3);
  EXPECT_GT(at(replay, "kl_mean").as_double(), 0);
  EXPECT_GE(at(replay, "kl_p99").as_double(), at(replay, "kl_mean").as_double());
  EXPECT_LE(at(replay, "same_token").as_double(), 1);
}

TEST(CliEval, MistakesAreNamed) {
  EXPECT_THAT(evaluate({"--task", "recal"}).err, HasSubstr("there is no test \"recal\"; there are: recall_256"));
  EXPECT_THAT(evaluate({"--task", "needle"}).err, HasSubstr("test needle_4k needs texts"));
  EXPECT_EQ(evaluate({"--task", "needle"}).status, 1);
  EXPECT_EQ(evaluate({"--items", "0"}).status, 2);
  EXPECT_THAT(evaluate({"--corpus", "/nowhere"}).err, HasSubstr("/nowhere/manifest.json"));
}

TEST(CliTrain, ATokenizerIsLearntAndMeasured) {
  const SmallCorpus corpus;
  const std::string out = (corpus.path() / "tokenizer.json").string();
  const ProgramResult result = run_tidepool({"train", "tokenizer", "--corpus", corpus.path().string(), "--vocab-size",
                                             "512", "--dialogues", "20", "--out", out, "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const Json object = result.json();
  EXPECT_EQ(at(object, "vocab_size").try_int64(), 512);
  EXPECT_GT(at(object, "bytes_per_token").as_double(), 2);
  EXPECT_LT(at(object, "engram_compressed_vocab_size").try_int64(), 512);
  EXPECT_EQ(at(at(at(object, "sources"), "tales"), "train").as_object().size(), 3);
  // The file is one that the text side reads.
  const ProgramResult ids = run_tidepool({"vectors", "tokenize", out}, R"({"id": 1, "text": "the cat<think>"})");
  EXPECT_EQ(ids.status, 0) << ids.err;
  const ProgramResult again = run_tidepool({"train", "tokenizer", "--corpus", corpus.path().string(), "--vocab-size",
                                            "512", "--dialogues", "20", "--out", out + "2"});
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(read_file(out, 1 << 20), read_file(out + "2", 1 << 20));
}

TEST(CliTrain, MistakesAreNamed) {
  const SmallCorpus corpus;
  const std::string folder = corpus.path().string();
  EXPECT_EQ(run_tidepool({"train"}).status, 2);
  EXPECT_THAT(
      run_tidepool({"train", "tokenizer", "--corpus", folder, "--vocab-size", "100", "--out", folder + "/x"}).err,
      HasSubstr("a vocabulary of 100 is too small"));
  EXPECT_THAT(
      run_tidepool({"train", "tokenizer", "--corpus", folder, "--vocab-size", "90000", "--out", folder + "/x"}).err,
      HasSubstr("are wanted; train on more text"));
}

}  // namespace
}  // namespace tidepool
