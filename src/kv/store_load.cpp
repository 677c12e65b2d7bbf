#include "kv/store_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <unordered_set>

#include "base/error.h"
#include "base/log.h"
#include "kv/store_uses.h"

namespace tidepool::store {

LoadOutcome load_families(FileSystem& files, const std::filesystem::path& folder, FamilyLog& blocks,
                          FamilyLog& snapshots, int64_t now) {
  try {
    blocks.load();
    snapshots.load();
  } catch (const std::filesystem::filesystem_error& error) {
    throw Error(ErrorCode::kIo,
                fmt::format("{}: the KV store cannot be read: {}", folder.string(), error.code().message()));
  }
  UsesRead read;
  try {
    read = read_uses(files, folder);
  } catch (const Error& error) {
    log_warning("KV store: {}; contexts count as used when they were written", error.what());
    read.damaged = 1;
  }
  if (read.damaged > 0) {
    log_warning("KV store: records of {} are damaged ({} of {}): those contexts count as used when they were written",
                (folder / kUsesName).string(), read.damaged, read.damaged + read.uses.size());
  }
  size_t newer = 0;
  for (FamilyLog* family : {&blocks, &snapshots}) {
    family->change_index([&](StoreIndex& index) {
      for (const Use& use : read.uses)
        index.restore_use(use);
      newer += index.settle_uses(now);
    });
  }
  if (newer > 0) {
    log_warning("KV store: {} records are from the future: a clock was set; they count as used now", newer);
  }
  return {.needs_rewrite = newer > 0 || read.damaged > 0,
          .damaged_uses = read.damaged,
          .uses_bytes = (read.uses.size() + read.damaged) * kUseBytes};
}

std::vector<BlockKey> superseded_snapshots(const FamilyLog& blocks, const FamilyLog& snapshots) {
  struct Candidate {
    BlockKey key;
    BlockKey parent;
    int64_t length;
    bool was_read;  ///< somebody went on from it
  };
  std::vector<Candidate> all = snapshots.with_index([](const StoreIndex& index) {
    std::vector<Candidate> candidates;
    for (const IndexEntry* entry : index.entries())
      candidates.push_back({entry->key, entry->parent, entry->index, entry->last_use > entry->written});
    return candidates;
  });
  // Longest first: what lies on the way from a longer one to the root, and was
  // read since it was written, is an older state of that session. Unread, it
  // may be the newest of another one that parts within the block behind it.
  std::ranges::sort(all, std::greater<>{}, &Candidate::length);
  return blocks.with_index([&](const StoreIndex& index) {
    std::unordered_set<BlockKey, KeyHash> on_the_way;
    std::vector<BlockKey> result;
    for (const Candidate& candidate : all) {
      if (candidate.was_read && on_the_way.contains(candidate.parent)) result.push_back(candidate.key);
      BlockKey at = candidate.parent;
      while (on_the_way.insert(at).second) {
        const IndexEntry* entry = index.lookup(at);
        if (entry == nullptr) break;
        at = entry->parent;
      }
    }
    std::ranges::reverse(result);
    return result;
  });
}

}  // namespace tidepool::store
