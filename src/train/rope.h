#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/rope.h"
#include "train/tape.h"

namespace tidepool {

/// Cosines and sines of positions from 0 on: those of the engine, to the bit, also for double.
template <typename Real>
class RotationTable {
 public:
  explicit RotationTable(RopeTable table) : table_(std::move(table)) {}

  /// Makes the angles of positions below `count` known, where they are not.
  void extend(size_t count);

  [[nodiscard]] size_t pairs() const { return table_.pairs(); }
  /// [pairs()] each; `position` lies below what extend() was last called with.
  [[nodiscard]] std::span<const Real> cos(size_t position) const { return row(cos_, position); }
  [[nodiscard]] std::span<const Real> sin(size_t position) const { return row(sin_, position); }

 private:
  [[nodiscard]] std::span<const Real> row(const std::vector<Real>& values, size_t position) const {
    return std::span(values).subspan(position * pairs(), pairs());
  }

  RopeTable table_;
  std::vector<Real> cos_;
  std::vector<Real> sin_;
};

/// Which way heads are turned.
enum class Turn : uint8_t { kForth, kBack };

/// What is turned: the last 2 * pairs values of each head, neighbours being a pair. (docs/model.md 2.3)
template <typename Real>
struct Rotation {
  const RotationTable<Real>* table = nullptr;  ///< outlives the pass
  std::span<const uint32_t> positions;         ///< of each row; lives as long as the pass
  size_t head_width = 0;
  Turn turn = Turn::kForth;
};

/// Turns x [rows, heads * head_width] where it lies: from here on x is the turned value. Going back, x and its gradient
/// are turned back before the operators that came earlier go back, so those may have made or read it.
template <typename Real>
void rotate_in_place(Tape<Real>& tape, const Value<Real>& x, const Rotation<Real>& rotation);

extern template class RotationTable<float>;
extern template class RotationTable<double>;
extern template void rotate_in_place(Tape<float>&, const Value<float>&, const Rotation<float>&);
extern template void rotate_in_place(Tape<double>&, const Value<double>&, const Rotation<double>&);

}  // namespace tidepool
