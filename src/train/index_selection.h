#pragma once

#include "model/candidate_pool.h"
#include "train/batch_rows.h"
#include "train/selected_entries.h"
#include "train/tape.h"

namespace tidepool {

/// What index scores are made of: s(t, j) = sum_h weights(t, h) ReLU(q(t, h) . key(j)). (docs/model.md 2.4)
template <typename Real>
struct IndexInputs {
  Value<Real> q;        ///< [rows, heads * width], turned
  Value<Real> weights;  ///< [rows, heads], scaled
  Value<Real> keys;     ///< [entries, width], turned
};

/// The blocks of entries each row may choose from, counted within its sample, ascending; a count of -1 means all. Its
/// memory is the tape's. (docs/model.md 2.5)
struct CandidateBlocks {
  Span2d<uint32_t> blocks;
  std::span<int32_t> counts;
};

/// What a layer does about the candidate pool.
enum class PoolUse : uint8_t { kNone, kMakes, kKeepsTo };

/// How many entries are chosen, and beside those that the indexer would choose in the end, which.
struct SelectionRule {
  size_t topk = 0;
  CandidatePoolConfig pool{};
  PoolUse pool_use = PoolUse::kNone;
  /// Visible entries that are drawn in addition, as a share of topk: the indexer learns from what it would not have
  /// chosen. 0 is inference.
  double exploration = 0;
  uint64_t seed = 0;  ///< of the draws
};

/// Chooses for every row, as the engine does with the same numbers: the greatest scores among the visible entries, the
/// lowest first of equal ones, none that is no number; all where all fit. `rows` are those of q, `entries` those of the
/// keys. The selection's `attention` is zero. `pool` is written by a layer that makes it.
template <typename Real>
[[nodiscard]] SelectedEntries<Real> select_entries(Tape<Real>& tape, const IndexInputs<Real>& inputs,
                                                   const BatchRows& rows, const EntryRows& entries,
                                                   const SelectionRule& rule, CandidateBlocks& pool);

extern template SelectedEntries<float> select_entries(Tape<float>&, const IndexInputs<float>&, const BatchRows&,
                                                      const EntryRows&, const SelectionRule&, CandidateBlocks&);
extern template SelectedEntries<double> select_entries(Tape<double>&, const IndexInputs<double>&, const BatchRows&,
                                                       const EntryRows&, const SelectionRule&, CandidateBlocks&);

}  // namespace tidepool
