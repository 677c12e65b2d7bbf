#include "bench/agent_trace.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/temp_folder.h"

namespace tidepool::bench {
namespace {

class AgentTraceTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    LoadOptions options;
    options.folder = std::filesystem::path(TIDEPOOL_GOLDEN_DIR) / "ckpt";
    options.threads = 1;
    const std::unique_ptr<LoadedModel> model = LoadedModel::load(options);
    const TempFolder folder;
    shared_result = run_agent_trace(*model, folder / "kv");
  }
  inline static AgentTraceResult shared_result;
};

TEST_F(AgentTraceTest, HasEverythingAnAgentDoes) {
  for (const char* session : {"main", "agent 1", "agent 2", "title"})
    EXPECT_TRUE(std::ranges::any_of(shared_result.turns, [&](const auto& turn) { return turn.session == session; }));
  EXPECT_EQ(shared_result.turns.front().cache.hit_tokens, 0);
  EXPECT_TRUE(std::ranges::any_of(shared_result.turns,
                                  [](const auto& turn) { return turn.cache.tier == CacheTier::kSnapshotDisk; }));
}

TEST_F(AgentTraceTest, TurnsReadWhatIsNewAndLittleMore) {
  for (size_t i = 0; i < shared_result.turns.size(); ++i) {
    const AgentTraceTurn& turn = shared_result.turns[i];
    EXPECT_LE(turn.read_tokens, turn.new_tokens + 128) << "turn " << i << " of " << turn.session;
  }
}

/// A session that goes on reads nothing twice but the last token of its answer, after a restart neither.
TEST_F(AgentTraceTest, MainSessionGoesOnExactly) {
  int64_t turns = 0;
  for (const AgentTraceTurn& turn : shared_result.turns) {
    if (turn.session != "main") continue;
    EXPECT_TRUE(turn.cache.is_exact);
    if (++turns % 5 != 0) {
      EXPECT_EQ(turn.read_tokens, turn.new_tokens) << "main turn " << turns;
    }
  }
}

TEST_F(AgentTraceTest, WritesNewBlocksOnceAndOneSnapshotASession) {
  int64_t new_tokens = 0;
  for (const AgentTraceTurn& turn : shared_result.turns)
    new_tokens += turn.new_tokens + turn.output_tokens;
  const uint64_t blocks = shared_result.written_bytes - shared_result.snapshot_bytes;
  EXPECT_LE(static_cast<double>(blocks),
            1.1 * static_cast<double>(shared_result.token_bytes) * static_cast<double>(new_tokens));
  EXPECT_GT(blocks, 0U);
  EXPECT_GT(shared_result.snapshots, 0);
}

}  // namespace
}  // namespace tidepool::bench
