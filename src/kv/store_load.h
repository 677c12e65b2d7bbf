#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/file.h"
#include "kv/store_family.h"

/// A whole folder of the disk store.
namespace tidepool::store {

struct LoadOutcome {
  bool needs_rewrite = false;  ///< the file of uses is damaged, or does not say what the indexes do now
  uint64_t damaged_uses = 0;
  uint64_t uses_bytes = 0;  ///< of the file of uses
};

/// Fills both families from the folder, with their last uses, `now` being the time. Throws Error(kIo) only when the
/// folder itself cannot be read.
[[nodiscard]] LoadOutcome load_families(FileSystem& files, const std::filesystem::path& folder, FamilyLog& blocks,
                                        FamilyLog& snapshots, int64_t now);

/// Keys of snapshots that a session went on from and behind which a longer one
/// lies, least valuable first: a session's newest stays when there is no room
/// for all.
[[nodiscard]] std::vector<BlockKey> superseded_snapshots(const FamilyLog& blocks, const FamilyLog& snapshots);

}  // namespace tidepool::store
