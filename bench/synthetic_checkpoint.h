#pragma once

#include <cstdint>
#include <filesystem>

namespace tidepool::bench {

/// A model of the released width cut to four layers, one of each kind: window, Full at ratio 2, Full at ratio 1 (where
/// the decoder begins) and Reindex; its vision tower has four blocks. No Engram or drafts.
struct CutModel {
  int64_t experts = 24;  ///< of the released 384; still several times what caches hold
  int64_t vocab_size = 129280;
};

/// Writes it to `folder` (which must exist) with random weights of ordinary size, as a checkpoint that Tidepool opens.
/// About 0.6 GB a layer and 2.6 GB of embedding and head. Throws Error(kIo).
void write_cut_model(const CutModel& model, const std::filesystem::path& folder);

}  // namespace tidepool::bench
