#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kv/block_key.h"
#include "kv/store_rows.h"

/// Records of the disk store as bytes. (docs/kv_store.md, "Record")
namespace tidepool::store {

inline constexpr uint32_t kRecordMagic = 0x4b564b54;  // "TKVK"
inline constexpr uint16_t kRecordVersion = 1;
inline constexpr size_t kHeaderBytes = 144;
/// Records begin at multiples of this in a file.
inline constexpr uint64_t kRecordAlignment = 64;
/// The longest record that is believed: a length beyond it is damage.
inline constexpr uint64_t kRecordBytesMax = uint64_t{1} << 32;

enum class RecordKind : uint8_t { kBlock = 1, kSnapshot = 2 };
enum class Codec : uint8_t { kNone = 0, kZstd = 1, kZstdRows = 2 };

/// What a record says of itself, without tokens and payload.
struct RecordMeta {
  RecordKind kind = RecordKind::kBlock;
  Codec codec = Codec::kNone;
  bool is_bounded = false;
  uint32_t tokens = 0;         ///< ids behind the header
  uint64_t payload_bytes = 0;  ///< as stored
  uint64_t raw_bytes = 0;      ///< of the payload when expanded
  int64_t index = 0;           ///< of a block in its chain; of a snapshot its length in tokens
  int64_t time = 0;            ///< of writing, seconds since 1970
  BlockKey key;
  BlockKey parent;

  /// Header, tokens and payload.
  [[nodiscard]] uint64_t bytes() const { return kHeaderBytes + tokens * sizeof(int32_t) + payload_bytes; }
  /// The same up to where the next record may begin.
  [[nodiscard]] uint64_t padded_bytes() const {
    return (bytes() + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
  }
  friend bool operator==(const RecordMeta&, const RecordMeta&) = default;
};

/// A record to be written; the spans are borrowed.
struct RecordToWrite {
  RecordMeta meta;  ///< codec, payload_bytes, raw_bytes and tokens are filled in
  std::span<const int32_t> tokens;
  std::span<const std::byte> payload;
};

/// How payloads are made smaller.
struct Compression {
  bool is_on = false;
  std::span<const RowRun> rows;  ///< of payloads that consist of such rows; others are taken as they are
};

/// The bytes of a record with its checksums, padded with zeros. A compressed form is taken when it saves at least 2 %
/// of the payload.
[[nodiscard]] std::vector<std::byte> encode_record(const RecordToWrite& record, const Compression& compression);

/// A header by itself, with its checksum: for lists of records. The record's own checksum in it is zero.
[[nodiscard]] std::array<std::byte, kHeaderBytes> encode_header(const RecordMeta& meta);

/// The header at the start of `bytes`, when its own checksum and version fit. Says nothing of what lies behind it.
[[nodiscard]] std::optional<RecordMeta> decode_header(std::span<const std::byte> bytes);

/// The record at the start of `bytes`, every byte checked: tokens and payload borrowed from `bytes`. The payload is as
/// stored. Nothing when anything does not fit.
struct RecordView {
  RecordMeta meta;
  std::vector<int32_t> tokens;
  std::span<const std::byte> payload;
};
[[nodiscard]] std::optional<RecordView> decode_record(std::span<const std::byte> bytes);

/// Writes the expanded payload to `out`, which has meta.raw_bytes. False when it cannot be expanded to exactly that.
[[nodiscard]] bool expand_payload(const RecordView& record, std::span<std::byte> out);

/// XXH3 of 128 bits: for damage, not for malice.
using Checksum = std::array<std::byte, 16>;
[[nodiscard]] Checksum checksum_of(std::span<const std::byte> bytes);

}  // namespace tidepool::store
