#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/file.h"
#include "kv/store_index.h"
#include "kv/store_record.h"

/// Reading many records of one family at once. (docs/kv_store.md, "Reading")
namespace tidepool::store {

enum class ReadOutcome : uint8_t {
  kRead,     ///< whole, and what was asked for
  kDamaged,  ///< checksum, version or key do not fit, or the medium failed
  kGone,     ///< no such file any more
};

struct RecordRequest {
  BlockKey key;
  Place place;
};

struct ReaderOptions {
  FileSystem& files;
  std::function<std::filesystem::path(uint32_t segment)> path;
  size_t threads = 1;
};

/// Reads `requests`, neighbours in one go, several of them in flight, around the page cache where the file system can.
/// `take` is called once for each request, from several threads; `record` is null unless the outcome is kRead, and its
/// payload is valid during the call only.
void read_records(const ReaderOptions& options, std::span<const RecordRequest> requests,
                  const std::function<void(size_t index, ReadOutcome outcome, const RecordView* record)>& take);

}  // namespace tidepool::store
