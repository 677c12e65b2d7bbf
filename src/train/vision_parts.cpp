#include "train/vision_parts.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>

#include "base/check.h"
#include "train/row_blocks.h"
#include "train/vector_math.h"

namespace tidepool {

namespace {

size_t rows_of(std::span<const PatchRows> pictures) {
  return pictures.empty() ? 0 : pictures.back().begin + pictures.back().count();
}

size_t cells_along(size_t patches, size_t side) {
  return (patches + side - 1) / side;
}

/// One head of one picture: its rows of q, k and v, and of the result.
template <typename Real>
struct Head {
  Span2d<Real> q;
  Span2d<Real> k;
  Span2d<Real> v;
  Span2d<Real> out;
};

/// Calls body(picture, head) for each head of each picture, over the tape's threads.
template <typename Real, typename Body>
void for_heads(const Tape<Real>& tape, size_t pictures, size_t heads, const Body& body) {
  tape.pool().run(pictures * heads, [&](size_t index, size_t) { body(index / heads, index % heads); });
}

template <typename Real>
Head<Real> head_of(const Span2d<Real>& qkv, const Span2d<Real>& out, const PatchRows& picture, size_t head,
                   size_t width) {
  const auto part = [&](const Span2d<Real>& matrix, size_t column) {
    return matrix.row_range(picture.begin, picture.count()).col_range(column, width);
  };
  const size_t all = out.cols;
  return {part(qkv, head * width), part(qkv, all + head * width), part(qkv, 2 * all + head * width),
          part(out, head * width)};
}

/// Scaled scores of one query against all keys.
template <typename Real>
void score_row(std::span<const Real> q, const Span2d<Real>& keys, Real scale, std::span<Real> scores) {
  for (size_t j = 0; j < keys.rows; ++j)
    scores[j] = dot<Real>(q, keys.row(j)) * scale;
}

/// Writes the result of all queries; `log_sums` gets the logarithm of each one's denominator.
template <typename Real>
void attend_forward(const Tape<Real>& tape, const Head<Real>& head, Real scale, std::span<Real> log_sums) {
  std::vector<Real> terms(head.k.rows);
  for (size_t i = 0; i < head.q.rows; ++i) {
    score_row<Real>(head.q.row(i), head.k, scale, terms);
    const SoftmaxSum sum = softmax_terms(tape, std::span<Real>(terms));
    log_sums[i] = static_cast<Real>(sum.largest + std::log(sum.sum));
    const std::span<Real> out = head.out.row(i);
    std::ranges::fill(out, Real{0});
    for (size_t j = 0; j < terms.size(); ++j)
      add_scaled<Real>(out, terms[j], head.v.row(j));
    for (Real& value : out)
      value /= static_cast<Real>(sum.sum);
  }
}

/// With p = softmax(s), s = scale q k^T and o = p v:  dv = p^T do,  ds = p (do v^T - do . o),  dq = scale ds k and
/// dk = scale ds^T q. Queries come in ascending order, so the sums of keys and values have one.
template <typename Real>
void attend_backward(const Head<Real>& head, const Head<Real>& grad, Real scale, std::span<const Real> log_sums) {
  std::vector<Real> scores(head.k.rows);
  for (size_t i = 0; i < head.q.rows; ++i) {
    score_row<Real>(head.q.row(i), head.k, scale, scores);
    const std::span<const Real> d_out = grad.out.row(i);
    const Real along = dot<Real>(d_out, head.out.row(i));
    for (size_t j = 0; j < scores.size(); ++j) {
      const Real p = std::exp(scores[j] - log_sums[i]);
      const Real d_score = p * (dot<Real>(d_out, head.v.row(j)) - along) * scale;
      add_scaled<Real>(grad.q.row(i), d_score, head.k.row(j));
      add_scaled<Real>(grad.k.row(j), d_score, head.q.row(i));
      add_scaled<Real>(grad.v.row(j), p, d_out);
    }
  }
}

template <typename Real>
void rotate_halves(const Tape<Real>& tape, const Span2d<Real>& x, const PatchAngles<Real>& angles, Real sign) {
  const size_t half = angles.cos.cols;
  for_row_blocks(tape, x.rows, 4 * x.cols, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      const Real* cos = angles.cos.row(row).data();
      const Real* sin = angles.sin.row(row).data();
      for (size_t column = 0; column < x.cols; column += 2 * half) {
        Real* first = x.row(row).data() + column;
        Real* second = first + half;
        for (size_t i = 0; i < half; ++i) {
          const Real a = first[i];
          const Real b = second[i];
          first[i] = a * cos[i] - b * (sign * sin[i]);
          second[i] = b * cos[i] + a * (sign * sin[i]);
        }
      }
    }
  });
}

/// No patch lies there: the grid ends inside the cell.
constexpr size_t kNoRow = ~size_t{0};

/// For each cell its side^2 patches' rows, or kNoRow.
std::vector<size_t> rows_of_cells(std::span<const PatchRows> pictures, size_t side) {
  std::vector<size_t> rows;
  rows.reserve(rows_of(pictures));
  for (const PatchRows& picture : pictures) {
    const size_t columns = cells_along(picture.columns, side);
    for (size_t cell = 0; cell < cells_along(picture.rows, side) * columns; ++cell) {
      for (size_t i = 0; i < side * side; ++i) {
        const size_t row = cell / columns * side + i / side;
        const size_t column = cell % columns * side + i % side;
        const bool is_there = row < picture.rows && column < picture.columns;
        rows.push_back(is_there ? picture.begin + row * picture.columns + column : kNoRow);
      }
    }
  }
  return rows;
}

/// What each position of the spans shows: a cell's row, or one of the three marks.
constexpr size_t kStart = ~size_t{0};
constexpr size_t kNewline = kStart - 1;
constexpr size_t kEnd = kStart - 2;

std::vector<size_t> positions_of_spans(std::span<const PatchRows> pictures, size_t side) {
  std::vector<size_t> positions;
  positions.reserve(rows_of(pictures));
  size_t cell = 0;
  for (const PatchRows& picture : pictures) {
    positions.push_back(kStart);
    for (size_t row = 0; row < cells_along(picture.rows, side); ++row) {
      for (size_t column = 0; column < cells_along(picture.columns, side); ++column)
        positions.push_back(cell++);
      positions.push_back(kNewline);
    }
    positions.push_back(kEnd);
  }
  return positions;
}

template <typename T, typename Real>
std::span<T> kept(Tape<Real>& tape, const std::vector<T>& values) {
  const std::span<T> copy = tape.template keep<T>(values.size());
  std::ranges::copy(values, copy.begin());
  return copy;
}

}  // namespace

template <typename Real>
void add_bias_in_place(Tape<Real>& tape, const Value<Real>& x, const Value<Real>& bias) {
  for_row_blocks(tape, x.rows(), x.cols(), [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row)
      add_scaled<Real>(x.data.row(row), 1, bias.data.row(0));
  });
  if (!bias.wants_grad()) return;
  tape.on_backward([&tape, x, bias] {
    for_column_blocks(tape, x.rows(), x.cols(), [&](size_t begin, size_t end) {
      for (size_t row = 0; row < x.rows(); ++row)
        add_scaled<Real>(bias.grad.row(0).subspan(begin, end - begin), 1, x.grad.row(row).subspan(begin, end - begin));
    });
  });
}

template <typename Real>
Value<Real> add(Tape<Real>& tape, const Value<Real>& a, const Value<Real>& b) {
  const Value<Real> y = tape.make(a.rows(), a.cols());
  for_row_blocks(tape, y.rows(), y.cols(), [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row)
      std::ranges::transform(a.data.row(row), b.data.row(row), y.data.row(row).begin(), std::plus<>{});
  });
  tape.on_backward([&tape, a, b, y] {
    for_row_blocks(tape, y.rows(), 2 * y.cols(), [&](size_t begin, size_t end) {
      for (size_t row = begin; row < end; ++row) {
        if (a.wants_grad()) add_scaled<Real>(a.grad.row(row), 1, y.grad.row(row));
        if (b.wants_grad()) add_scaled<Real>(b.grad.row(row), 1, y.grad.row(row));
      }
    });
  });
  return y;
}

template <typename Real>
Value<Real> gelu(Tape<Real>& tape, const Value<Real>& x) {
  constexpr size_t kGeluOperations = 40;
  constexpr Real kRootHalf = 1 / std::numbers::sqrt2_v<Real>;
  const Value<Real> y = tape.make(x.rows(), x.cols());
  for_row_blocks(tape, x.rows(), kGeluOperations * x.cols(), [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row)
      std::ranges::transform(x.data.row(row), y.data.row(row).begin(),
                             [&](Real value) { return value * (1 + std::erf(value * kRootHalf)) / 2; });
  });
  // With the normal distribution's Phi and density phi:  dy / dx = Phi(x) + x phi(x).
  tape.on_backward([&tape, x, y] {
    constexpr Real kDensity = std::numbers::inv_sqrtpi_v<Real> * kRootHalf;
    for_row_blocks(tape, x.rows(), 2 * kGeluOperations * x.cols(), [&](size_t begin, size_t end) {
      for (size_t row = begin; row < end; ++row) {
        for (size_t i = 0; i < x.cols(); ++i) {
          const Real value = x.data.at(row, i);
          const Real slope = (1 + std::erf(value * kRootHalf)) / 2 + value * kDensity * std::exp(-value * value / 2);
          x.grad.at(row, i) += y.grad.at(row, i) * slope;
        }
      }
    });
  });
  return y;
}

template <typename Real>
PatchAngles<Real> patch_angles(Tape<Real>& tape, std::span<const PatchRows> pictures, size_t head_dim, double theta) {
  const size_t per_axis = head_dim / 4;
  const Value<Real> cos = tape.make_constant(rows_of(pictures), 2 * per_axis);
  const Value<Real> sin = tape.make_constant(rows_of(pictures), 2 * per_axis);
  for (const PatchRows& picture : pictures) {
    for (size_t patch = 0; patch < picture.count(); ++patch) {
      const size_t places[2] = {patch / picture.columns, patch % picture.columns};
      for (size_t i = 0; i < 2 * per_axis; ++i) {
        const size_t axis = i / per_axis;
        // In binary32, as the engine does.
        const float exponent = static_cast<float>(2 * (i % per_axis)) / static_cast<float>(2 * per_axis);
        const float frequency = 1.0F / std::pow(static_cast<float>(theta), exponent);
        const float angle = static_cast<float>(places[axis]) * frequency;
        cos.data.at(picture.begin + patch, i) = std::cos(angle);
        sin.data.at(picture.begin + patch, i) = std::sin(angle);
      }
    }
  }
  return {cos.data, sin.data};
}

template <typename Real>
void rotate_halves_in_place(Tape<Real>& tape, const Value<Real>& x, const PatchAngles<Real>& angles) {
  rotate_halves(tape, x.data, angles, Real{1});
  tape.on_backward([&tape, x, angles] { rotate_halves(tape, x.grad, angles, Real{-1}); });
}

template <typename Real>
Value<Real> picture_attention(Tape<Real>& tape, const Value<Real>& qkv, const std::vector<PatchRows>& pictures,
                              size_t heads) {
  const size_t all = qkv.cols() / 3;
  const size_t width = all / heads;
  const Real scale = 1 / std::sqrt(static_cast<Real>(width));
  const Value<Real> out = tape.make(qkv.rows(), all);
  const std::span<Real> log_sums = tape.template keep<Real>(qkv.rows() * heads);
  const auto sums_of = [log_sums, heads](const PatchRows& picture, size_t head) {
    return log_sums.subspan(picture.begin * heads + head * picture.count(), picture.count());
  };
  for_heads(tape, pictures.size(), heads, [&](size_t p, size_t head) {
    attend_forward(tape, head_of(qkv.data, out.data, pictures[p], head, width), scale, sums_of(pictures[p], head));
  });
  tape.on_backward([&tape, qkv, out, pictures, heads, width, scale, sums_of] {
    for_heads(tape, pictures.size(), heads, [&](size_t p, size_t head) {
      attend_backward<Real>(head_of(qkv.data, out.data, pictures[p], head, width),
                            head_of(qkv.grad, out.grad, pictures[p], head, width), scale, sums_of(pictures[p], head));
    });
  });
  return out;
}

template <typename Real>
Value<Real> gather_cells(Tape<Real>& tape, const Value<Real>& x, const std::vector<PatchRows>& pictures, size_t side) {
  const std::span<const size_t> rows = kept(tape, rows_of_cells(pictures, side));
  const size_t patches = side * side;
  const Value<Real> y = tape.make(rows.size() / patches, patches * x.cols());
  for_row_blocks(tape, y.rows(), y.cols(), [&](size_t begin, size_t end) {
    for (size_t cell = begin; cell < end; ++cell) {
      for (size_t i = 0; i < patches; ++i) {
        const size_t row = rows[cell * patches + i];
        for (size_t c = 0; c < x.cols(); ++c)
          y.data.at(cell, c * patches + i) = row == kNoRow ? Real{0} : x.data.at(row, c);
      }
    }
  });
  tape.on_backward([&tape, x, y, rows, patches] {
    // A patch belongs to one cell.
    for_row_blocks(tape, y.rows(), y.cols(), [&](size_t begin, size_t end) {
      for (size_t i = begin * patches; i < end * patches; ++i) {
        if (rows[i] == kNoRow) continue;
        for (size_t c = 0; c < x.cols(); ++c)
          x.grad.at(rows[i], c) += y.grad.at(i / patches, c * patches + i % patches);
      }
    });
  });
  return y;
}

template <typename Real>
Value<Real> join_spans(Tape<Real>& tape, const Value<Real>& cells, const std::vector<PatchRows>& pictures, size_t side,
                       const SpanMarks<Real>& marks) {
  const std::span<const size_t> positions = kept(tape, positions_of_spans(pictures, side));
  const Value<Real> y = tape.make(positions.size(), cells.cols());
  const auto shown = [cells, marks, positions](size_t position, auto part) -> std::span<Real> {
    switch (positions[position]) {
      case kStart: return (marks.start.*part).row(0);
      case kNewline: return (marks.newline.*part).row(0);
      case kEnd: return (marks.end.*part).row(0);
      default: return (cells.*part).row(positions[position]);
    }
  };
  for (size_t row = 0; row < y.rows(); ++row)
    std::ranges::copy(shown(row, &Value<Real>::data), y.data.row(row).begin());
  tape.on_backward([y, shown] {
    for (size_t row = 0; row < y.rows(); ++row)
      add_scaled<Real>(shown(row, &Value<Real>::grad), 1, y.grad.row(row));
  });
  return y;
}

template <typename Real>
Value<Real> replace_rows(Tape<Real>& tape, const Value<Real>& x, const Value<Real>& rows,
                         std::span<const size_t> places) {
  TIDEPOOL_CHECK(places.size() == rows.rows() && x.cols() == rows.cols(), "a row for each place");
  const Value<Real> y = tape.make(x.rows(), x.cols());
  const std::span<size_t> sources = tape.template keep<size_t>(x.rows());  // row of `rows`, or kNoRow
  std::ranges::fill(sources, kNoRow);
  for (size_t i = 0; i < places.size(); ++i)
    sources[places[i]] = i;
  const auto source = [x, rows, sources](size_t row, auto part) {
    return sources[row] == kNoRow ? (x.*part).row(row) : (rows.*part).row(sources[row]);
  };
  for_row_blocks(tape, x.rows(), x.cols(), [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row)
      std::ranges::copy(source(row, &Value<Real>::data), y.data.row(row).begin());
  });
  tape.on_backward([&tape, y, source] {
    for_row_blocks(tape, y.rows(), y.cols(), [&](size_t begin, size_t end) {
      for (size_t row = begin; row < end; ++row)
        add_scaled<Real>(source(row, &Value<Real>::grad), 1, y.grad.row(row));
    });
  });
  return y;
}

#define TIDEPOOL_FOR_REAL(Real)                                                                                   \
  template void add_bias_in_place(Tape<Real>&, const Value<Real>&, const Value<Real>&);                           \
  template Value<Real> add(Tape<Real>&, const Value<Real>&, const Value<Real>&);                                  \
  template Value<Real> gelu(Tape<Real>&, const Value<Real>&);                                                     \
  template PatchAngles<Real> patch_angles(Tape<Real>&, std::span<const PatchRows>, size_t, double);               \
  template void rotate_halves_in_place(Tape<Real>&, const Value<Real>&, const PatchAngles<Real>&);                \
  template Value<Real> picture_attention(Tape<Real>&, const Value<Real>&, const std::vector<PatchRows>&, size_t); \
  template Value<Real> gather_cells(Tape<Real>&, const Value<Real>&, const std::vector<PatchRows>&, size_t);      \
  template Value<Real> join_spans(Tape<Real>&, const Value<Real>&, const std::vector<PatchRows>&, size_t,         \
                                  const SpanMarks<Real>&);                                                        \
  template Value<Real> replace_rows(Tape<Real>&, const Value<Real>&, const Value<Real>&, std::span<const size_t>)
TIDEPOOL_FOR_REAL(float);
TIDEPOOL_FOR_REAL(double);
#undef TIDEPOOL_FOR_REAL

}  // namespace tidepool
