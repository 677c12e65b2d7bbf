#include "kv/store_record.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kv/store_test_support.h"

namespace tidepool::store {
namespace {

std::vector<std::byte> encoded(size_t payload_bytes, bool compresses = false) {
  const StoredBlock block = test_block(3, 7, payload_bytes);
  return encode_record(
      {.meta = {.kind = RecordKind::kBlock, .index = 7, .time = 1234, .key = block.key, .parent = block.parent},
       .tokens = block.tokens,
       .payload = block.data->span()},
      {.is_on = compresses, .rows = {}});
}

TEST(StoreRecord, ReadsBackWhatWasWritten) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{48}, size_t{1000}, size_t{113920}}) {
    const std::vector<std::byte> record = encoded(bytes);
    EXPECT_EQ(record.size() % kRecordAlignment, 0U);
    const std::optional<RecordView> view = decode_record(record);
    ASSERT_TRUE(view);
    const StoredBlock block = test_block(3, 7, bytes);
    EXPECT_EQ(view->meta.key, block.key);
    EXPECT_EQ(view->meta.parent, block.parent);
    EXPECT_EQ(view->meta.index, 7);
    EXPECT_EQ(view->meta.time, 1234);
    EXPECT_EQ(view->tokens, block.tokens);
    EXPECT_TRUE(std::ranges::equal(view->payload, block.data->span()));
  }
}

TEST(StoreRecord, AReleasedBlockTakesLessThan900BytesAToken) {
  // 128 tokens of 890 bytes, ids and header, and its entry in the segment's list.
  EXPECT_LE(encoded(113920).size() + kHeaderBytes, 900U * 128);
}

TEST(StoreRecord, EveryFlippedBitIsSeen) {
  const std::vector<std::byte> record = encoded(100);
  const uint64_t bytes = decode_header(record)->bytes();
  for (size_t byte = 0; byte < bytes; ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      std::vector<std::byte> flipped = record;
      flipped[byte] ^= static_cast<std::byte>(1 << bit);
      EXPECT_FALSE(decode_record(flipped)) << byte << " " << bit;
    }
  }
}

TEST(StoreRecord, EveryTruncationIsSeen) {
  const std::vector<std::byte> record = encoded(100);
  const uint64_t bytes = decode_header(record)->bytes();
  for (size_t keep = 0; keep < bytes; ++keep)
    EXPECT_FALSE(decode_record(std::span(record).first(keep))) << keep;
  EXPECT_TRUE(decode_record(std::span(record).first(bytes)));
}

TEST(StoreRecord, AHeaderStandsForItself) {
  const std::vector<std::byte> record = encoded(5000);
  const std::optional<RecordMeta> meta = decode_header(std::span(record).first(kHeaderBytes));
  ASSERT_TRUE(meta);
  EXPECT_EQ(meta->padded_bytes(), record.size());
  EXPECT_EQ(decode_header(encode_header(*meta)), meta);
}

TEST(StoreRecord, RowsAreCompressedByTheirParts) {
  // Two shapes of rows whose codes are random and whose scales are all alike: only the scales can be saved.
  const std::vector<RowRun> runs = {{.rows = 100, .row_bytes = 40, .code_bytes = 32},
                                    {.rows = 50, .row_bytes = 20, .code_bytes = 16},
                                    {.rows = 100, .row_bytes = 40, .code_bytes = 32}};
  std::vector<std::byte> payload = test_bytes(200 * 40 + 50 * 20, 5);
  size_t at = 0;
  for (const RowRun& run : runs) {
    for (uint32_t row = 0; row < run.rows; ++row, at += run.row_bytes)
      std::fill_n(payload.begin() + static_cast<ptrdiff_t>(at + run.code_bytes), run.row_bytes - run.code_bytes,
                  std::byte{7});
  }
  const std::vector<std::byte> record =
      encode_record({.meta = {}, .tokens = {}, .payload = payload}, {.is_on = true, .rows = runs});
  EXPECT_LT(record.size(), 200U * 32 + 50 * 16 + 500);
  const std::optional<RecordView> view = decode_record(record);
  ASSERT_TRUE(view);
  EXPECT_EQ(view->meta.codec, Codec::kZstdRows);
  std::vector<std::byte> expanded(payload.size());
  EXPECT_TRUE(expand_payload(*view, expanded));
  EXPECT_EQ(expanded, payload);
}

TEST(StoreRecord, DamagedRowsAreRefused) {
  const std::vector<RowRun> runs = {{.rows = 10, .row_bytes = 40, .code_bytes = 32}};
  const std::vector<std::byte> payload = test_bytes(400, 5);
  const std::vector<std::byte> stored = compress_rows(payload, runs).value();
  std::vector<std::byte> out(400);
  EXPECT_TRUE(expand_rows(stored, out));
  for (size_t keep = 0; keep < stored.size(); ++keep)
    EXPECT_FALSE(expand_rows(std::span(stored).first(keep), out)) << keep;
  EXPECT_FALSE(expand_rows(stored, std::span(out).first(399)));
  EXPECT_FALSE(compress_rows(std::span(payload).first(399), runs));
}

TEST(StoreRecord, CompressionIsTakenOnlyWhereItPays) {
  EXPECT_EQ(decode_header(encoded(50000, true))->codec, Codec::kNone);  // random bytes
  const std::vector<std::byte> zeros(50000);
  const std::vector<std::byte> record =
      encode_record({.meta = {}, .tokens = {}, .payload = zeros}, {.is_on = true, .rows = {}});
  const std::optional<RecordView> view = decode_record(record);
  ASSERT_TRUE(view);
  EXPECT_EQ(view->meta.codec, Codec::kZstd);
  EXPECT_LT(record.size(), 1000U);
  std::vector<std::byte> expanded(50000, std::byte{1});
  EXPECT_TRUE(expand_payload(*view, expanded));
  EXPECT_EQ(expanded, zeros);
  std::vector<std::byte> too_small(49999);
  EXPECT_FALSE(expand_payload(*view, too_small));
}

}  // namespace
}  // namespace tidepool::store
