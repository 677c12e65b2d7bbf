#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/temp_folder.h"
#include "cli_program.h"
#include "kv/store_test_support.h"

namespace tidepool {
namespace {

using testing::HasSubstr;

/// A folder with a store of ten blocks and a snapshot.
class CliCacheTest : public testing::Test {
 protected:
  CliCacheTest() {
    DiskStoreOptions options;
    options.folder = kv();
    const auto store = open_disk_store(options);
    for (int64_t i = 0; i < 10; ++i)
      store->write(store::test_block(1, i, 3000));
    store->write_snapshot(store::test_snapshot(1, 9, 1300, 3000));
  }
  [[nodiscard]] std::string kv() const { return (folder_ / "kv").string(); }
  [[nodiscard]] ProgramResult cache(const std::string& action, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments{"cache", action, "--kv-dir", kv()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_tidepool(arguments);
  }

 private:
  TempFolder folder_;
};

TEST_F(CliCacheTest, StatCountsAndNamesTheOwner) {
  const Json idle = cache("stat", {"--json"}).json();
  EXPECT_EQ(at(idle, "blocks").try_int64(), 10);
  EXPECT_EQ(at(idle, "snapshots").try_int64(), 1);
  EXPECT_TRUE(at(idle, "owner").is_null());
  EXPECT_GT(*at(idle, "disk_bytes").try_int64(), 33000);
  DiskStoreOptions options;
  options.folder = kv();
  const auto owner = open_disk_store(options);
  EXPECT_EQ(at(cache("stat", {"--json"}).json(), "owner").as_string(), "process " + std::to_string(::getpid()));
  EXPECT_THAT(cache("stat").out, HasSubstr("10 of 128 tokens"));
}

TEST_F(CliCacheTest, VerifyEndsWithOneAndNamesTheDamage) {
  EXPECT_EQ(cache("verify").status, 0);
  const std::string file = kv() + "/blocks-00000001.seg";
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(9000);
  stream.put('\x01').put('\x02').put('\x03');
  stream.close();
  const ProgramResult result = cache("verify", {"--json"});
  EXPECT_EQ(result.status, 1);
  const Json document = result.json();
  ASSERT_EQ(at(document, "damages").as_array().size(), 1U);
  EXPECT_EQ(at(at(document, "damages").as_array()[0], "file").as_string(), file);
  EXPECT_EQ(at(document, "records").try_int64(), 10);
  EXPECT_THAT(cache("verify").out, HasSubstr(file));
}

TEST_F(CliCacheTest, ClearAsksSomebodyOrTakesYes) {
  const ProgramResult unasked = cache("clear");
  EXPECT_EQ(unasked.status, 1);
  EXPECT_THAT(unasked.err, HasSubstr("--yes"));
  EXPECT_EQ(at(cache("stat", {"--json"}).json(), "blocks").try_int64(), 10);
  EXPECT_EQ(cache("clear", {"--yes"}).status, 0);
  EXPECT_EQ(at(cache("stat", {"--json"}).json(), "blocks").try_int64(), 0);
}

TEST_F(CliCacheTest, TrimRefusesWhileAnotherProcessOwnsTheFolder) {
  EXPECT_EQ(cache("trim", {"--kv-disk", "16MiB", "--kv-ttl", "1h"}).status, 0);
  DiskStoreOptions options;
  options.folder = kv();
  const auto owner = open_disk_store(options);
  const ProgramResult result = cache("trim");
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("process " + std::to_string(::getpid())));
}

TEST_F(CliCacheTest, AFolderThatIsNotThereIsSaid) {
  const ProgramResult result = run_tidepool({"cache", "stat", "--kv-dir", kv() + "/nothing"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("there is no KV store"));
}

}  // namespace
}  // namespace tidepool
