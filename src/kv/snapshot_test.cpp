#include "kv/snapshot.h"

#include <gtest/gtest.h>

#include <fstream>

#include "kv/kv_test_support.h"

namespace tidepool {
namespace {

using kv_testing::random_tokens;
using kv_testing::read_tokens;
using kv_testing::released_layout;
using kv_testing::small_layout;
using Blocks = std::vector<std::shared_ptr<const KvBlock>>;

std::optional<SequenceState> restored(const SequenceState& state, std::span<const std::byte> bytes) {
  const auto complete = static_cast<size_t>(state.length() / kBlockTokens);
  const Blocks blocks(state.blocks().begin(), state.blocks().begin() + static_cast<int64_t>(complete));
  return restore_snapshot(small_layout(), bytes, state.tokens().first(complete * kBlockTokens), blocks);
}

/// A state of so many tokens of which the decoder has read the last window.
SequenceState some_state(size_t length) {
  SequenceState state(small_layout());
  read_tokens(state, random_tokens(length, 3), static_cast<int64_t>(length) - 16);
  return state;
}

TEST(Snapshot, RestoresTheSameState) {
  for (const size_t length : {size_t{1}, size_t{2}, size_t{15}, size_t{127}, size_t{128}, size_t{129}, size_t{300}}) {
    const SequenceState state = some_state(length);
    const std::vector<std::byte> bytes = write_snapshot(state, {});
    std::optional<SequenceState> copy = restored(state, bytes);
    ASSERT_TRUE(copy) << length;
    EXPECT_TRUE(same_state(*copy, state)) << length;
    EXPECT_TRUE(same_draft_windows(*copy, state)) << length;
    EXPECT_EQ(write_snapshot(*copy, {}), bytes) << length;
  }
}

TEST(Snapshot, RestoredStateRollsBackAsTheOriginalDoes) {
  SequenceState state = some_state(130);
  read_tokens(state, random_tokens(5, 4));
  state.rollback(132);
  std::optional<SequenceState> copy = restored(state, write_snapshot(state, {}));
  ASSERT_TRUE(copy);
  for (int64_t length = 132; length > 120; --length)
    EXPECT_EQ(copy->can_rollback(length), state.can_rollback(length)) << length;
  copy->rollback(127);
  state.rollback(127);
  read_tokens(*copy, random_tokens(9, 5));
  read_tokens(state, random_tokens(9, 5));
  EXPECT_TRUE(same_state(*copy, state));
}

TEST(Snapshot, InfoOfAStateIsThatOfItsBytes) {
  const std::vector<ImageSpan> images = {{10, 20, Digest{std::byte{1}}}, {250, 260, Digest{std::byte{2}}}};
  for (const size_t length : {size_t{1}, size_t{128}, size_t{300}}) {
    SequenceState state = some_state(length);
    state.mark_bounded();
    const SnapshotInfo info = snapshot_info(state, images);
    const std::optional<SnapshotInfo> read = read_snapshot_info(*small_layout(), write_snapshot(state, images));
    ASSERT_TRUE(read);
    EXPECT_EQ(info.length, read->length);
    EXPECT_EQ(info.tail, read->tail);
    EXPECT_EQ(info.images, read->images);
    EXPECT_EQ(info.marks, read->marks);
  }
}

TEST(Snapshot, KeepsTheImagesThatTouchTheTail) {
  SequenceState state = some_state(300);
  const std::vector<ImageSpan> images = {
      {10, 20, Digest{std::byte{1}}}, {250, 260, Digest{std::byte{2}}}, {290, 320, Digest{std::byte{3}}}};
  const std::optional<SnapshotInfo> info = read_snapshot_info(*small_layout(), write_snapshot(state, images));
  ASSERT_TRUE(info);
  EXPECT_EQ(info->images, std::vector<ImageSpan>(images.begin() + 1, images.end()));
  EXPECT_EQ(info->tail_begin(), 256);
  EXPECT_EQ(info->tail.size(), 44U);
}

TEST(Snapshot, SizeIsWhatTheRowsTake) {
  SequenceState state(released_layout());
  const std::vector<InputToken> tokens(1000);
  state.append(tokens);
  state.begin_decoder_rows(872);
  // 104 tokens behind 7 blocks; 20 rings of 136 rows and 20 of 128; 10 rows of 1024 floats for 3 sources.
  const size_t expected = 120 + 104 * 8 + 104 * 890 + 20 * (136 + 128) * 528 + 3 * 10 * 1024 * 4 + 32;
  EXPECT_EQ(write_snapshot(state, {}).size(), expected);
}

TEST(Snapshot, AnyChangedByteIsNoticed) {
  const SequenceState state = some_state(140);
  const std::vector<std::byte> bytes = write_snapshot(state, {});
  for (size_t at = 0; at < bytes.size(); at += at < 200 ? 1 : 97) {
    std::vector<std::byte> damaged = bytes;
    damaged[at] ^= std::byte{0x10};
    EXPECT_FALSE(read_snapshot_info(*small_layout(), damaged)) << at;
    EXPECT_FALSE(restored(state, damaged)) << at;
  }
}

TEST(Snapshot, AnyOtherLengthIsNoticed) {
  const SequenceState state = some_state(140);
  std::vector<std::byte> bytes = write_snapshot(state, {});
  for (size_t length = 0; length < bytes.size(); length += length < 160 ? 1 : 101)
    EXPECT_FALSE(read_snapshot_info(*small_layout(), std::span(bytes).first(length))) << length;
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(read_snapshot_info(*small_layout(), bytes));
}

/// A header that lies, with a checksum that fits.
TEST(Snapshot, HostileHeadersAreRefused) {
  const SequenceState state = some_state(140);
  const std::vector<std::byte> good = write_snapshot(state, {});
  constexpr size_t kFieldsBegin = 48;  // length, longest, global_end, ...
  for (size_t field = 0; field < 8; ++field) {
    for (const int64_t value : {int64_t{-1}, int64_t{1} << 20, int64_t{1} << 62, INT64_MIN, INT64_MAX}) {
      std::vector<std::byte> bytes(good.begin(), good.end() - 32);
      std::memcpy(bytes.data() + kFieldsBegin + field * 8, &value, sizeof(value));
      const Digest digest = sha256(bytes);
      bytes.insert(bytes.end(), digest.begin(), digest.end());
      EXPECT_FALSE(read_snapshot_info(*small_layout(), bytes)) << field << " " << value;
    }
  }
}

TEST(Snapshot, OtherShapesAreRefused) {
  const std::vector<std::byte> bytes = write_snapshot(some_state(140), {});
  KvLayout other = *small_layout();
  other.window = 32;
  EXPECT_FALSE(read_snapshot_info(other, bytes));
  KvLayout more = *small_layout();
  more.sources.push_back(more.sources.front());
  finish_kv_layout(more);
  EXPECT_FALSE(read_snapshot_info(more, bytes));
}

TEST(Snapshot, CommonTokensStopAtAnotherPicture) {
  const std::vector<InputToken> tokens(100, InputToken{7, true});
  const std::vector<ImageSpan> a = {{10, 20, Digest{std::byte{1}}}, {30, 50, Digest{std::byte{2}}}};
  std::vector<ImageSpan> b = a;
  EXPECT_EQ(common_tokens({tokens, a}, 0, tokens, b), 100);
  b[1].digest[0] = std::byte{9};
  EXPECT_EQ(common_tokens({tokens, a}, 0, tokens, b), 30);
  b[1] = {32, 50, Digest{std::byte{2}}};
  EXPECT_EQ(common_tokens({tokens, a}, 0, tokens, b), 30);
  b.pop_back();
  EXPECT_EQ(common_tokens({tokens, a}, 0, tokens, b), 30);
}

}  // namespace
}  // namespace tidepool
