#pragma once

#include <cstdint>
#include <span>

#include "train/tape.h"

namespace tidepool {

/// Rows `ids` of `table` [vocab, d]: [ids.size(), d]. Ids must be rows of the table.
template <typename Real>
[[nodiscard]] Value<Real> embedding(Tape<Real>& tape, const Value<Real>& table, std::span<const int32_t> ids);

extern template Value<float> embedding(Tape<float>&, const Value<float>&, std::span<const int32_t>);
extern template Value<double> embedding(Tape<double>&, const Value<double>&, std::span<const int32_t>);

}  // namespace tidepool
