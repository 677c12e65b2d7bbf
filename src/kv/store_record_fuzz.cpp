// Input: a record as it lies on the disk, damaged in any way. What is accepted reads back the same when written again.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "kv/store_record.h"

using tidepool::store::decode_header;
using tidepool::store::decode_record;
using tidepool::store::encode_record;
using tidepool::store::expand_payload;
using tidepool::store::kRecordBytesMax;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto meta = decode_header(bytes);
  if (meta) TIDEPOOL_CHECK(meta->bytes() <= kRecordBytesMax, "a length beyond belief");
  const auto record = decode_record(bytes);
  if (!record) return 0;
  TIDEPOOL_CHECK(meta && record->payload.size() == meta->payload_bytes, "payload and header differ");
  constexpr uint64_t kExpandedMax = uint64_t{1} << 24;  // the fuzzer's memory, not a rule of the format
  if (meta->raw_bytes > kExpandedMax) return 0;
  std::vector<std::byte> payload(meta->raw_bytes);
  if (!expand_payload(*record, payload)) return 0;
  const auto again = encode_record({.meta = record->meta, .tokens = record->tokens, .payload = payload}, {});
  const auto second = decode_record(again);
  TIDEPOOL_CHECK(second && second->tokens == record->tokens && second->meta.key == meta->key, "written, not read");
  return 0;
}
