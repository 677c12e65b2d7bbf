#include "train/run_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "base/temp_folder.h"

namespace tidepool {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using testing::UnorderedElementsAre;

struct SmallRun {
  std::vector<float> weights{1.5F, -2, 3};
  std::vector<float> momentum{0.25F};
  RunState state{"abc", 1, 20, 4096, 12.125, {{"shard", 7}, {"document", 18'446'744'073'709'551'615U}}};

  [[nodiscard]] std::vector<NamedBuffer> buffers() { return {{"a/weights", weights}, {"a/momentum", momentum}}; }
};

std::string why(const auto& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(RunState, ComesBackAsItWas) {
  const TempFolder folder;
  SmallRun run;
  save_run_state(folder / "state", run.state, run.buffers());
  SmallRun other;
  other.weights = {0, 0, 0};
  other.momentum = {0};
  load_run_buffers(folder / "state", other.buffers());
  const RunState state = load_run_state(folder / "state", "abc");
  EXPECT_THAT(other.weights, ElementsAre(1.5F, -2, 3));
  EXPECT_THAT(other.momentum, ElementsAre(0.25F));
  EXPECT_EQ(state.stage, 1U);
  EXPECT_EQ(state.step, 20U);
  EXPECT_EQ(state.tokens, 4096U);
  EXPECT_EQ(state.seconds, 12.125);
  EXPECT_THAT(state.counters, UnorderedElementsAre(Pair("shard", 7U), Pair("document", 18'446'744'073'709'551'615U)));
}

TEST(RunState, AnotherRecipeDoesNotGoOnWithIt) {
  const TempFolder folder;
  SmallRun run;
  save_run_state(folder / "state", run.state, run.buffers());
  EXPECT_THAT(why([&] { (void)load_run_state(folder / "state", "abd"); }), HasSubstr("belongs to another recipe"));
}

TEST(RunState, BuffersMustBeTheSame) {
  const TempFolder folder;
  SmallRun run;
  save_run_state(folder / "state", run.state, run.buffers());
  std::vector<NamedBuffer> fewer = run.buffers();
  fewer.pop_back();
  EXPECT_THAT(why([&] { load_run_buffers(folder / "state", fewer); }), HasSubstr("2 buffers and should hold 1"));
  std::vector<NamedBuffer> renamed = run.buffers();
  renamed.back().name = "a/other";
  EXPECT_THAT(why([&] { load_run_buffers(folder / "state", renamed); }), HasSubstr("no \"a/other\""));
  run.momentum.push_back(1);
  EXPECT_THAT(why([&] { load_run_buffers(folder / "state", run.buffers()); }),
              HasSubstr("4 bytes of F32 and should have 8"));
}

TEST(RunState, AFileThatIsCutShortIsRefused) {
  const TempFolder folder;
  SmallRun run;
  save_run_state(folder / "state", run.state, run.buffers());
  std::filesystem::resize_file(folder / "state", std::filesystem::file_size(folder / "state") - 1);
  EXPECT_THAT(why([&] { load_run_buffers(folder / "state", run.buffers()); }), HasSubstr("state"));
  EXPECT_THROW((void)load_run_state(folder / "nowhere", "abc"), Error);
}

}  // namespace
}  // namespace tidepool
