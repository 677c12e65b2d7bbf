#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "train/tape.h"

// The operators of the vision tower that the text model does not have. (docs/model.md 4.2)

namespace tidepool {

/// The patches of one picture, row after row, among the rows of all pictures of a pass.
struct PatchRows {
  size_t begin = 0;
  size_t rows = 0;     ///< of patches
  size_t columns = 0;  ///< patches of a row
  [[nodiscard]] size_t count() const { return rows * columns; }
};

/// x += bias [1, cols], in place; whatever made x must not read it going back.
template <typename Real>
void add_bias_in_place(Tape<Real>& tape, const Value<Real>& x, const Value<Real>& bias);

/// a + b.
template <typename Real>
[[nodiscard]] Value<Real> add(Tape<Real>& tape, const Value<Real>& a, const Value<Real>& b);

/// 0.5 x (1 + erf(x / sqrt 2)).
template <typename Real>
[[nodiscard]] Value<Real> gelu(Tape<Real>& tape, const Value<Real>& x);

/// The angles of the patches of all pictures, [rows, head_dim / 2]: the first half of a patch's are its row times the
/// frequencies theta^(-4i / head_dim), the others its column times the same. Those of the engine, also for double.
template <typename Real>
struct PatchAngles {
  Span2d<const Real> cos;
  Span2d<const Real> sin;
};
template <typename Real>
[[nodiscard]] PatchAngles<Real> patch_angles(Tape<Real>& tape, std::span<const PatchRows> pictures, size_t head_dim,
                                             double theta);

/// Turns pairs (i, i + head_dim / 2) of each head of x [rows, heads * head_dim], in place; whatever made x must not
/// read it going back.
template <typename Real>
void rotate_halves_in_place(Tape<Real>& tape, const Value<Real>& x, const PatchAngles<Real>& angles);

/// softmax(q k^T head_dim^-1/2) v of each head, each patch over all patches of its own picture. qkv
/// [rows, 3 * heads * head_dim] is queries, keys and values of all heads; the result [rows, heads * head_dim]. Going
/// back the probabilities are computed again, so nothing has a size of rows times rows.
template <typename Real>
[[nodiscard]] Value<Real> picture_attention(Tape<Real>& tape, const Value<Real>& qkv,
                                            const std::vector<PatchRows>& pictures, size_t heads);

/// The patches of each cell of side x side as one row [cells, cols * side^2]: channel by channel, those of a channel
/// row by row, zeros where the grid of patches ends inside the cell. Cells come picture by picture, row by row.
template <typename Real>
[[nodiscard]] Value<Real> gather_cells(Tape<Real>& tape, const Value<Real>& x, const std::vector<PatchRows>& pictures,
                                       size_t side);

/// The learned embeddings around and inside a span, [1, cols] each.
template <typename Real>
struct SpanMarks {
  Value<Real> start;
  Value<Real> newline;
  Value<Real> end;
};
/// The spans of all pictures, one after the other: start, for each row of cells these and newline, then end.
/// (docs/model.md 4.3)
template <typename Real>
[[nodiscard]] Value<Real> join_spans(Tape<Real>& tape, const Value<Real>& cells, const std::vector<PatchRows>& pictures,
                                     size_t side, const SpanMarks<Real>& marks);

/// x with row places[i] replaced by row i of `rows`. Places differ.
template <typename Real>
[[nodiscard]] Value<Real> replace_rows(Tape<Real>& tape, const Value<Real>& x, const Value<Real>& rows,
                                       std::span<const size_t> places);

#define TIDEPOOL_FOR_REAL(Real)                                                                                     \
  extern template void add_bias_in_place(Tape<Real>&, const Value<Real>&, const Value<Real>&);                      \
  extern template Value<Real> add(Tape<Real>&, const Value<Real>&, const Value<Real>&);                             \
  extern template Value<Real> gelu(Tape<Real>&, const Value<Real>&);                                                \
  extern template PatchAngles<Real> patch_angles(Tape<Real>&, std::span<const PatchRows>, size_t, double);          \
  extern template void rotate_halves_in_place(Tape<Real>&, const Value<Real>&, const PatchAngles<Real>&);           \
  extern template Value<Real> picture_attention(Tape<Real>&, const Value<Real>&, const std::vector<PatchRows>&,     \
                                                size_t);                                                            \
  extern template Value<Real> gather_cells(Tape<Real>&, const Value<Real>&, const std::vector<PatchRows>&, size_t); \
  extern template Value<Real> join_spans(Tape<Real>&, const Value<Real>&, const std::vector<PatchRows>&, size_t,    \
                                         const SpanMarks<Real>&);                                                   \
  extern template Value<Real> replace_rows(Tape<Real>&, const Value<Real>&, const Value<Real>&, std::span<const size_t>)
TIDEPOOL_FOR_REAL(float);
TIDEPOOL_FOR_REAL(double);
#undef TIDEPOOL_FOR_REAL

}  // namespace tidepool
