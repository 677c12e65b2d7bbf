#pragma once

#include <cstdint>
#include <span>

#include "model/engram_hash.h"
#include "train/batch_rows.h"
#include "train/fake_quant.h"

namespace tidepool {

/// Table and projections of one Engram layer. (docs/model.md 2.8)
template <typename Real>
struct EngramParameters {
  const Parameter<Real>* table = nullptr;     ///< [rows, head_dim]
  const Parameter<Real>* wkv = nullptr;       ///< [(streams + 1) * d, columns * head_dim]: keys, then the value
  const Parameter<Real>* q_weight = nullptr;  ///< [streams, d]
  const Parameter<Real>* k_weight = nullptr;
};

/// Finds them for `layer`.
template <typename Real>
[[nodiscard]] EngramParameters<Real> bind_engram(const ParameterSet<Real>& parameters, size_t layer);

/// Where the n-grams of a batch lead to.
struct EngramRows {
  std::vector<int64_t> table_rows;  ///< [rows, columns]
  std::vector<uint8_t> is_dead;     ///< one per row: image positions, which take nothing; empty for none
  size_t columns = 0;
};

/// Hashes every row of every sample, by its own sample's tokens alone. `tokens` has a row's token at the row's place;
/// `samples` are whole samples.
[[nodiscard]] EngramRows hash_rows(const EngramHash& hash, size_t slot, std::span<const InputToken> tokens,
                                   std::span<const SampleRows> samples);

/// stream + gate * value for each stream, [rows, streams * d]; only the table's rows that were read get gradients.
/// eps is that of the norms inside the gate.
template <typename Real>
[[nodiscard]] Value<Real> engram(Tape<Real>& tape, const Qat& qat, const EngramParameters<Real>& parameters,
                                 const EngramRows& rows, const Value<Real>& stream, std::type_identity_t<Real> eps);

#define TIDEPOOL_FOR_REAL(Real)                                                                                 \
  extern template EngramParameters<Real> bind_engram(const ParameterSet<Real>&, size_t);                        \
  extern template Value<Real> engram(Tape<Real>&, const Qat&, const EngramParameters<Real>&, const EngramRows&, \
                                     const Value<Real>&, Real)
TIDEPOOL_FOR_REAL(float);
TIDEPOOL_FOR_REAL(double);
#undef TIDEPOOL_FOR_REAL

}  // namespace tidepool
