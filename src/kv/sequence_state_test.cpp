#include "kv/sequence_state.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kv/kv_test_support.h"

namespace tidepool {
namespace {

using kv_testing::released_layout;

std::vector<InputToken> some_tokens(size_t count) {
  return std::vector<InputToken>(count, InputToken{7, false});
}

TEST(SequenceState, TakesThePublishedBytesPerToken) {
  SequenceState state(released_layout());
  const size_t empty = state.bytes();
  // 40 rings of 128 + 8 rows of 528 bytes, and 3 sources of 10 rows of 2 x 512 floats, beside small bookkeeping.
  EXPECT_NEAR(static_cast<double>(empty), 40.0 * 136 * 528 + 3.0 * 10 * 1024 * 4, 4096);
  constexpr size_t kTokens = size_t{128} * 100;
  state.append(some_tokens(kTokens));
  const size_t ids = kTokens * sizeof(InputToken);
  EXPECT_EQ(state.bytes() - empty, kTokens * 890 + ids);
  EXPECT_LT(empty, size_t{4} << 20);
}

TEST(SequenceState, ForkSharesBlocksUntilOneSideGrows) {
  SequenceState original(released_layout());
  original.append(some_tokens(100));
  original.entry_for_write(3, 99)[0] = std::byte{1};
  SequenceState copy = original.fork();
  EXPECT_EQ(copy.entry(3, 99), original.entry(3, 99));
  copy.append(some_tokens(1));
  EXPECT_NE(copy.entry(3, 99), original.entry(3, 99));
  copy.entry_for_write(3, 99)[0] = std::byte{2};
  EXPECT_EQ(original.entry(3, 99)[0], std::byte{1});
}

TEST(SequenceState, RollbackReachesAsFarAsTheRingsRemember) {
  SequenceState state(released_layout());
  state.append(some_tokens(300));
  EXPECT_TRUE(state.can_rollback(292));
  EXPECT_FALSE(state.can_rollback(291));
  state.rollback(292);
  EXPECT_EQ(state.length(), 292);
  // What was taken back does not come closer by going on a little.
  state.append(some_tokens(4));
  EXPECT_FALSE(state.can_rollback(291));
  EXPECT_TRUE(state.can_rollback(292));
}

TEST(SequenceState, KeysOfOneBlockLieTogether) {
  SequenceState state(released_layout());
  state.append(some_tokens(400));
  const kernels::KeyRun run = state.key_run(3, 120, 200);
  EXPECT_EQ(run.count, 8);
  EXPECT_EQ(run.keys, state.key(3, 120));
  EXPECT_EQ(state.key(3, 121) - state.key(3, 120), 68);
  EXPECT_EQ(state.key_run(0, 10, 200).count, 54);  // 64 rows a block at ratio 2
}

TEST(SequenceState, DecoderWindowStartsAnewWhenRowsWereSkipped) {
  SequenceState state(released_layout());
  state.append(some_tokens(10));
  state.begin_decoder_rows(0);
  EXPECT_EQ(state.window_begin(20), 0);
  state.append(some_tokens(10));
  state.begin_decoder_rows(10);
  EXPECT_EQ(state.window_begin(20), 0);
  state.append(some_tokens(200));
  state.begin_decoder_rows(92);
  EXPECT_EQ(state.window_begin(20), 92);
  EXPECT_EQ(state.window_begin(19), 0);
}

TEST(SequenceState, DifferentTokensAreNotTheSameState) {
  SequenceState a(released_layout());
  SequenceState b(released_layout());
  a.append(some_tokens(3));
  b.append(some_tokens(3));
  EXPECT_TRUE(same_state(a, b));
  b.append(some_tokens(1));
  EXPECT_FALSE(same_state(a, b));
}

}  // namespace
}  // namespace tidepool
