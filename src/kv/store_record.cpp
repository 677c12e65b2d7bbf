#include "kv/store_record.h"

#define XXH_STATIC_LINKING_ONLY  // the state on the stack, as its documentation allows
#include <xxhash.h>
#include <zstd.h>

#include <cstring>
#include <utility>

#include "base/check.h"
#include "kv/store_bytes.h"

namespace tidepool::store {
namespace {

constexpr uint32_t kFlagBounded = 1;

/// Compression must save this much of a payload to be worth its time at every read.
constexpr size_t kSavingDivisor = 50;
/// Of what has no rows: snapshots.
constexpr int kSnapshotZstdLevel = 1;

/// Offsets in a header; all numbers are little-endian.
enum Offset : size_t {
  kAtMagic = 0,
  kAtVersion = 4,
  kAtKind = 6,
  kAtCodec = 7,
  kAtFlags = 8,
  kAtTokens = 12,
  kAtPayloadBytes = 16,
  kAtRawBytes = 24,
  kAtIndex = 32,
  kAtTime = 40,
  kAtKey = 48,
  kAtParent = 80,
  kAtReserved = 112,
  kAtHeaderChecksum = 120,
  kAtChecksum = 128,
};

/// Of everything but the checksum itself.
Checksum record_checksum(std::span<const std::byte> bytes) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  XXH3_128bits_update(&state, bytes.data(), kAtChecksum);
  XXH3_128bits_update(&state, bytes.data() + kHeaderBytes, bytes.size() - kHeaderBytes);
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
  Checksum result;
  static_assert(sizeof canonical == sizeof result);
  std::memcpy(result.data(), &canonical, sizeof result);
  return result;
}

void put_header(std::byte* at, const RecordMeta& meta) {
  put(at + kAtMagic, kRecordMagic);
  put(at + kAtVersion, kRecordVersion);
  put(at + kAtKind, meta.kind);
  put(at + kAtCodec, meta.codec);
  put(at + kAtFlags, meta.is_bounded ? kFlagBounded : 0U);
  put(at + kAtTokens, meta.tokens);
  put(at + kAtPayloadBytes, meta.payload_bytes);
  put(at + kAtRawBytes, meta.raw_bytes);
  put(at + kAtIndex, meta.index);
  put(at + kAtTime, meta.time);
  put(at + kAtKey, meta.key.digest);
  put(at + kAtParent, meta.parent.digest);
  put(at + kAtReserved, uint64_t{0});
  put(at + kAtHeaderChecksum, static_cast<uint64_t>(XXH3_64bits(at, kAtHeaderChecksum)));
}

struct Compressed {
  Codec codec = Codec::kNone;
  std::vector<std::byte> bytes;
};

std::vector<std::byte> compress_plainly(std::span<const std::byte> payload) {
  std::vector<std::byte> bytes(ZSTD_compressBound(payload.size()));
  const size_t size = ZSTD_compress(bytes.data(), bytes.size(), payload.data(), payload.size(), kSnapshotZstdLevel);
  bytes.resize(ZSTD_isError(size) == 0 ? size : payload.size());
  return bytes;
}

/// Codec::kNone when nothing saves enough.
Compressed try_compress(std::span<const std::byte> payload, const Compression& compression) {
  if (!compression.is_on) return {};
  Compressed result;
  if (auto rows = compress_rows(payload, compression.rows)) {
    result = {Codec::kZstdRows, std::move(*rows)};
  } else {
    result = {Codec::kZstd, compress_plainly(payload)};
  }
  const bool pays = result.bytes.size() + payload.size() / kSavingDivisor < payload.size();
  return pays ? std::move(result) : Compressed{};
}

}  // namespace

Checksum checksum_of(std::span<const std::byte> bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  Checksum result;
  std::memcpy(result.data(), &canonical, sizeof result);
  return result;
}

std::vector<std::byte> encode_record(const RecordToWrite& record, const Compression& compression) {
  const Compressed compressed = try_compress(record.payload, compression);
  const std::span<const std::byte> payload =
      compressed.codec == Codec::kNone ? record.payload : std::span<const std::byte>(compressed.bytes);
  RecordMeta meta = record.meta;
  meta.codec = compressed.codec;
  meta.tokens = static_cast<uint32_t>(record.tokens.size());
  meta.payload_bytes = payload.size();
  meta.raw_bytes = record.payload.size();
  TIDEPOOL_CHECK(meta.bytes() <= kRecordBytesMax, "a record without bounds");
  std::vector<std::byte> bytes;
  bytes.reserve(meta.padded_bytes());
  const auto header = encode_header(meta);
  const auto tokens = std::as_bytes(record.tokens);
  bytes.insert(bytes.end(), header.begin(), header.end());
  bytes.insert(bytes.end(), tokens.begin(), tokens.end());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  put(bytes.data() + kAtChecksum, record_checksum(bytes));
  bytes.resize(meta.padded_bytes());
  return bytes;
}

std::array<std::byte, kHeaderBytes> encode_header(const RecordMeta& meta) {
  std::array<std::byte, kHeaderBytes> bytes{};
  put_header(bytes.data(), meta);
  return bytes;
}

std::optional<RecordMeta> decode_header(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes) return std::nullopt;
  const std::byte* at = bytes.data();
  if (get<uint32_t>(at + kAtMagic) != kRecordMagic || get<uint16_t>(at + kAtVersion) != kRecordVersion)
    return std::nullopt;
  if (get<uint64_t>(at + kAtHeaderChecksum) != XXH3_64bits(at, kAtHeaderChecksum)) return std::nullopt;
  RecordMeta meta;
  const auto kind = get<uint8_t>(at + kAtKind);
  const auto codec = get<uint8_t>(at + kAtCodec);
  if (kind != static_cast<uint8_t>(RecordKind::kBlock) && kind != static_cast<uint8_t>(RecordKind::kSnapshot)) {
    return std::nullopt;
  }
  if (codec > static_cast<uint8_t>(Codec::kZstdRows)) return std::nullopt;
  meta.kind = static_cast<RecordKind>(kind);
  meta.codec = static_cast<Codec>(codec);
  meta.is_bounded = (get<uint32_t>(at + kAtFlags) & kFlagBounded) != 0;
  meta.tokens = get<uint32_t>(at + kAtTokens);
  meta.payload_bytes = get<uint64_t>(at + kAtPayloadBytes);
  meta.raw_bytes = get<uint64_t>(at + kAtRawBytes);
  meta.index = get<int64_t>(at + kAtIndex);
  meta.time = get<int64_t>(at + kAtTime);
  meta.key.digest = get<Digest>(at + kAtKey);
  meta.parent.digest = get<Digest>(at + kAtParent);
  if (meta.payload_bytes > kRecordBytesMax || meta.bytes() > kRecordBytesMax || meta.raw_bytes > kRecordBytesMax) {
    return std::nullopt;
  }
  if (meta.codec == Codec::kNone && meta.raw_bytes != meta.payload_bytes) return std::nullopt;
  return meta;
}

std::optional<RecordView> decode_record(std::span<const std::byte> bytes) {
  const std::optional<RecordMeta> meta = decode_header(bytes);
  if (!meta || bytes.size() < meta->bytes()) return std::nullopt;
  bytes = bytes.first(meta->bytes());
  if (get<Checksum>(bytes.data() + kAtChecksum) != record_checksum(bytes)) return std::nullopt;
  RecordView record{.meta = *meta, .tokens = std::vector<int32_t>(meta->tokens), .payload = {}};
  if (meta->tokens > 0) std::memcpy(record.tokens.data(), bytes.data() + kHeaderBytes, meta->tokens * sizeof(int32_t));
  record.payload = bytes.subspan(kHeaderBytes + meta->tokens * sizeof(int32_t));
  return record;
}

bool expand_payload(const RecordView& record, std::span<std::byte> out) {
  if (out.size() != record.meta.raw_bytes) return false;
  if (record.meta.codec == Codec::kNone) {
    if (!out.empty()) std::memcpy(out.data(), record.payload.data(), out.size());
    return true;
  }
  if (record.meta.codec == Codec::kZstdRows) return expand_rows(record.payload, out);
  return ZSTD_decompress(out.data(), out.size(), record.payload.data(), record.payload.size()) == out.size();
}

}  // namespace tidepool::store
