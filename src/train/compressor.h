#pragma once

#include "train/batch_rows.h"
#include "train/tape.h"

namespace tidepool {

/// What a compressor pools: the two projections of every token. (docs/model.md 2.2)
template <typename Real>
struct TokenGroups {
  Value<Real> kv;                      ///< [rows, width]
  Value<Real> gate;                    ///< [rows, width]
  const BatchRows* rows = nullptr;     ///< whole samples; outlives the pass
  const EntryRows* entries = nullptr;  ///< outlives the pass
};

/// The latents of all complete groups, [entries, width]: per channel, a softmax over the gates of a group's tokens
/// weighs their kv. Tokens that do not fill a group take part in nothing.
template <typename Real>
[[nodiscard]] Value<Real> pool_groups(Tape<Real>& tape, const TokenGroups<Real>& groups);

extern template Value<float> pool_groups(Tape<float>&, const TokenGroups<float>&);
extern template Value<double> pool_groups(Tape<double>&, const TokenGroups<double>&);

}  // namespace tidepool
