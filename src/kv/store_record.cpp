#include "kv/store_record.h"

#define XXH_STATIC_LINKING_ONLY  // the state on the stack, as its documentation allows
#include <xxhash.h>
#include <zstd.h>

#include <cstring>

#include "base/check.h"

namespace tidepool::store {
namespace {

constexpr uint32_t kFlagBounded = 1;

/// Compression must save this much of a payload to be worth its time at every read.
constexpr size_t kSavingDivisor = 50;
/// Codes of FP4 have no repetitions to search for, only unequal frequencies: the fastest level finds all there is.
constexpr int kZstdLevel = 1;

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

template <typename T>
void put(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}
template <typename T>
T get(const std::byte* at) {
  T value{};
  std::memcpy(&value, at, sizeof value);
  return value;
}

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

/// The payload compressed into `out` behind `offset`, when that saves enough; else nothing and `out` is as it was.
std::optional<size_t> try_compress(std::span<const std::byte> payload, std::vector<std::byte>& out, size_t offset) {
  const size_t room = ZSTD_compressBound(payload.size());
  out.resize(offset + room);
  const size_t bytes = ZSTD_compress(out.data() + offset, room, payload.data(), payload.size(), kZstdLevel);
  if (ZSTD_isError(bytes) == 0 && bytes + payload.size() / kSavingDivisor <= payload.size()) return bytes;
  return std::nullopt;
}

}  // namespace

Checksum checksum_of(std::span<const std::byte> bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  Checksum result;
  std::memcpy(result.data(), &canonical, sizeof result);
  return result;
}

std::vector<std::byte> encode_record(const RecordToWrite& record, bool compresses) {
  RecordMeta meta = record.meta;
  meta.tokens = static_cast<uint32_t>(record.tokens.size());
  meta.raw_bytes = record.payload.size();
  const size_t payload_at = kHeaderBytes + record.tokens.size_bytes();
  std::vector<std::byte> bytes;
  const std::optional<size_t> compressed = compresses ? try_compress(record.payload, bytes, payload_at) : std::nullopt;
  meta.codec = compressed ? Codec::kZstd : Codec::kNone;
  meta.payload_bytes = compressed.value_or(record.payload.size());
  TIDEPOOL_CHECK(meta.bytes() <= kRecordBytesMax, "a record without bounds");
  bytes.resize(meta.bytes());
  if (!compressed && !record.payload.empty()) {
    std::memcpy(bytes.data() + payload_at, record.payload.data(), record.payload.size());
  }
  put_header(bytes.data(), meta);
  if (!record.tokens.empty()) {
    std::memcpy(bytes.data() + kHeaderBytes, record.tokens.data(), record.tokens.size_bytes());
  }
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
  if (codec != static_cast<uint8_t>(Codec::kNone) && codec != static_cast<uint8_t>(Codec::kZstd)) return std::nullopt;
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
  return ZSTD_decompress(out.data(), out.size(), record.payload.data(), record.payload.size()) == out.size();
}

}  // namespace tidepool::store
