// The KV cache as `run` shows it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/temp_folder.h"
#include "cli_program.h"

namespace tidepool {
namespace {

using testing::HasSubstr;

/// Ids 3, 4, 5, ... of which the one at `changed` is another.
std::string prompt(int count, int changed = -1) {
  std::string list;
  for (int i = 0; i < count; ++i)
    list += (list.empty() ? "" : ",") + std::to_string(i == changed ? 300 : 3 + i % 200);
  return list;
}

ProgramResult run_in(const TempFolder& folder, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"run", golden("ckpt"), "--temperature", "0", "--max-tokens", "12", "--json",
                                       "--kv-dir", (folder / "kv").string()});
  return run_tidepool(arguments);
}

Json prompt_cache(const ProgramResult& result) {
  EXPECT_EQ(result.status, 0) << result.err;
  return at(at(result.json(), "usage"), "prompt_cache");
}

TEST(CliKv, SecondProgramFindsWhatTheFirstHasRead) {
  const TempFolder folder;
  const ProgramResult first = run_in(folder, {"--prompt-ids", prompt(300)});
  const Json miss = prompt_cache(first);
  EXPECT_EQ(at(miss, "tier").as_string(), "none");
  EXPECT_EQ(at(miss, "hit").try_int64(), 0);
  EXPECT_EQ(at(miss, "miss").try_int64(), 300);
  EXPECT_EQ(at(miss, "end").as_string(), "not_seen");

  // The answer belongs to the prompt now: the whole state of the first program is taken up.
  std::string next = prompt(300);
  for (const int64_t id : integers(at(first.json(), "output_ids")))
    next += "," + std::to_string(id);
  const Json hit = prompt_cache(run_in(folder, {"--prompt-ids", next + ",9,9,9"}));
  EXPECT_EQ(at(hit, "tier").as_string(), "snapshot_disk");
  EXPECT_EQ(at(hit, "hit").try_int64(), 311);
  EXPECT_EQ(at(hit, "replayed").try_int64(), 0);
  EXPECT_TRUE(at(hit, "exact").as_bool());
}

TEST(CliKv, OtherPromptIsToldWhereItDiffersInItsOwnWords) {
  const TempFolder folder;
  (void)run_in(folder, {"--prompt-ids", prompt(300)});
  const Json report = prompt_cache(run_in(folder, {"--prompt-ids", prompt(300, 200)}));
  EXPECT_EQ(at(report, "tier").as_string(), "disk");
  EXPECT_EQ(at(report, "hit").try_int64(), 128);
  EXPECT_EQ(at(report, "replayed").try_int64(), 16);
  EXPECT_FALSE(at(report, "exact").as_bool());
  EXPECT_EQ(at(report, "end").as_string(), "differs");
  EXPECT_EQ(at(report, "first_difference").try_int64(), 200);
  EXPECT_LE(at(report, "request_text_there").as_string().size(), 80U);
  EXPECT_FALSE(at(report, "request_text_there").as_string().empty());
}

/// With exact replay the second program answers what it would answer without a cache.
TEST(CliKv, ExactReplayAnswersAsWithoutACache) {
  const TempFolder folder;
  (void)run_in(folder, {"--prompt-ids", prompt(290), "--replay", "exact"});
  const ProgramResult warm = run_in(folder, {"--prompt-ids", prompt(300, 280), "--replay", "exact"});
  EXPECT_EQ(at(prompt_cache(warm), "hit").try_int64(), 256);
  const TempFolder empty;
  const ProgramResult cold = run_in(empty, {"--prompt-ids", prompt(300, 280), "--replay", "exact"});
  EXPECT_EQ(integers(at(warm.json(), "output_ids")), integers(at(cold.json(), "output_ids")));
}

TEST(CliKv, FolderIsItsOwnersAlone) {
  const TempFolder folder;
  ASSERT_EQ(run_in(folder, {"--prompt-ids", prompt(300)}).status, 0);
  struct stat info {};
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder.path())) {
    ASSERT_EQ(::stat(file.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 077U, 0U) << file.path();
  }
}

TEST(CliKv, RequestThatNeverFitsIsRefusedWithTheRemedy) {
  const TempFolder folder;
  const ProgramResult result = run_in(folder, {"--prompt-ids", prompt(300), "--kv-ram", "20KiB"});
  EXPECT_NE(result.status, 0);
  EXPECT_THAT(result.out + result.err, HasSubstr("--kv-ram"));
}

TEST(CliKv, SizesAndTimesTakeUnits) {
  const TempFolder folder;
  EXPECT_EQ(run_in(folder, {"--prompt-ids", prompt(9), "--kv-ram", "64MiB", "--snapshot-ram", "1 MB", "--snapshot-ttl",
                            "2m", "--kv-disk", "16MiB", "--kv-ttl", "3d"})
                .status,
            0);
  EXPECT_NE(run_in(folder, {"--prompt-ids", prompt(9), "--kv-ram", "much"}).status, 0);
  EXPECT_NE(run_in(folder, {"--prompt-ids", prompt(9), "--snapshot-ttl", "2 moons"}).status, 0);
}

}  // namespace
}  // namespace tidepool
