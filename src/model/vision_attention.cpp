#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/runtime.h"
#include "model/vision_internal.h"

namespace tidepool::vision {
namespace {

/// Queries that go through the products at a time: enough that keys from the second-level cache are used often.
constexpr size_t kQueries = 64;
/// Keys are padded to a multiple of this.
constexpr size_t kKeyPadding = kernels::kDenseKeys;

size_t padded(size_t count) {
  return kernels::dense_keys_padded(count);
}

size_t bytes_per_value(MatrixFormat format) {
  return format == MatrixFormat::kBf16 ? sizeof(Bf16) : sizeof(float);
}

void store(MatrixFormat format, std::span<std::byte> to, size_t index, float value) {
  if (format == MatrixFormat::kBf16) {
    reinterpret_cast<Bf16*>(to.data())[index] = to_bf16(value);
  } else {
    reinterpret_cast<float*>(to.data())[index] = value;
  }
}

}  // namespace

TowerAttention::TowerAttention(const Math& math, Arena& arena, const TowerShape& shape,
                               std::vector<PictureRows> pictures)
    : math_(math),
      arena_(arena),
      shape_(shape),
      pictures_(std::move(pictures)),
      is_packed_(math.kernels().dense_attention != nullptr && math.numerics().round_to_bf16 &&
                 shape.head_dim() % 16 == 0),
      // Where they are the weights of two products, keys and values are stored as the numerics have them.
      format_(math.numerics().round_to_bf16 ? MatrixFormat::kBf16 : MatrixFormat::kFloat32) {
  static_assert(kChunkRows % kKeyPadding == 0, "chunks hold whole tiles of keys");
  size_t keys = 0;
  key_begin_.reserve(pictures_.size());
  for (const PictureRows& picture : pictures_) {
    key_begin_.push_back(keys);
    keys += padded(picture.count());
    most_keys_ = std::max(most_keys_, padded(picture.count()));
  }
  const size_t rows = pictures_.back().begin + pictures_.back().count();
  queries_ = arena.matrix(rows, shape.width);
  keys_ = Buffer<std::byte>(keys * shape.width * bytes_per_value(format_));
  values_ = Buffer<std::byte>(keys * shape.width * bytes_per_value(format_));
  cos_ = arena.matrix(rows, shape.head_dim() / 2);
  sin_ = arena.matrix(rows, shape.head_dim() / 2);
  make_angles();
}

size_t TowerAttention::head_begin(size_t picture, size_t head) const {
  const size_t keys = padded(pictures_[picture].count());
  return (key_begin_[picture] * shape_.width + head * keys * shape_.head_dim()) * bytes_per_value(format_);
}

/// The first half of a patch's angles are its row times the frequencies, the others its column times the same.
void TowerAttention::make_angles() {
  const size_t per_axis = shape_.head_dim() / 4;
  std::vector<float> frequencies;
  for (size_t i = 0; i < per_axis; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(2 * per_axis);
    frequencies.push_back(1.0F / std::pow(static_cast<float>(shape_.rope_theta), exponent));
  }
  for (const PictureRows& picture : pictures_) {
    for (size_t patch = 0; patch < picture.count(); ++patch) {
      const size_t places[2] = {patch / picture.patch_columns, patch % picture.patch_columns};
      for (size_t axis = 0; axis < 2; ++axis) {
        for (size_t i = 0; i < per_axis; ++i) {
          const float angle = static_cast<float>(places[axis]) * frequencies[i];
          cos_.row(picture.begin + patch)[axis * per_axis + i] = std::cos(angle);
          sin_.row(picture.begin + patch)[axis * per_axis + i] = std::sin(angle);
        }
      }
    }
  }
}

/// Turns pairs (i, i + half) of each head by the angles of `row`, with a rounding point behind it.
void TowerAttention::rotate(std::span<float> heads, size_t row) const {
  const size_t half = shape_.head_dim() / 2;
  const float* cos = cos_.row(row).data();
  const float* sin = sin_.row(row).data();
  for (size_t begin = 0; begin < heads.size(); begin += 2 * half) {
    float* first = heads.data() + begin;
    float* second = first + half;
    for (size_t i = 0; i < half; ++i) {
      const float a = first[i];
      const float b = second[i];
      first[i] = a * cos[i] - b * sin[i];
      second[i] = b * cos[i] + a * sin[i];
    }
  }
  math_.round(heads);
}

/// Queries, keys and values of some rows.
void TowerAttention::take_rows(const VisionBlockWeights& weights, Span2d<const float> x, const Rows& rows) {
  const Arena::Scope scope(arena_);
  const size_t width = shape_.width;
  const size_t first = pictures_[rows.picture].begin + rows.begin;
  const Span2d<float> normed = arena_.matrix(rows.count, width);
  math_.rms_norm_rows(x.row_range(first, rows.count), weights.norm1, kNormEps, normed);
  const Span2d<float> qkv = arena_.matrix(rows.count, 3 * width);
  biased_linear(math_, weights.wqkv, normed, qkv);
  math_.for_rows(rows.count, [&](size_t i, size_t) {
    rotate(qkv.row(i).first(2 * width), first + i);
    std::ranges::copy(qkv.row(i).first(width), queries_.row(first + i).begin());
  });
  const Span2d<const float> keys = qkv.col_range(width, width);
  const Span2d<const float> values = qkv.col_range(2 * width, width);
  is_packed_ ? pack_rows(rows, keys, values) : keep_rows(rows, keys, values);
}

/// As the weights of two products: keys by rows, values by columns.
void TowerAttention::keep_rows(const Rows& rows, Span2d<const float> keys, Span2d<const float> values) {
  const size_t head_dim = shape_.head_dim();
  const size_t patches_padded = padded(pictures_[rows.picture].count());
  math_.for_rows(rows.count, [&](size_t i, size_t) {
    for (size_t head = 0; head < shape_.heads; ++head) {
      const size_t begin = head_begin(rows.picture, head) / bytes_per_value(format_);
      for (size_t c = 0; c < head_dim; ++c) {
        const size_t channel = head * head_dim + c;
        store(format_, keys_.span(), begin + (rows.begin + i) * head_dim + c, keys.row(i)[channel]);
        store(format_, values_.span(), begin + c * patches_padded + rows.begin + i, values.row(i)[channel]);
      }
    }
  });
}

void TowerAttention::pack_rows(const Rows& rows, Span2d<const float> keys, Span2d<const float> values) {
  const size_t head_dim = shape_.head_dim();
  const size_t tiles = padded(rows.count) / kKeyPadding;
  const size_t tile_bytes = kKeyPadding * head_dim * sizeof(Bf16);
  math_.for_rows(tiles * shape_.heads, [&](size_t index, size_t) {
    const size_t head = index / tiles;
    const size_t begin = head_begin(rows.picture, head) + rows.begin / kKeyPadding * tile_bytes;
    math_.kernels().pack_dense({.keys = keys.data + head * head_dim,
                                .values = values.data + head * head_dim,
                                .stride = keys.stride,
                                .count = rows.count,
                                .width = head_dim,
                                .tile_begin = index % tiles,
                                .tile_end = index % tiles + 1,
                                .packed_keys = keys_.data() + begin,
                                .packed_values = values_.data() + begin});
  });
}

void TowerAttention::attend_packed(const Task& task, std::span<float> scratch) {
  const PictureRows& picture = pictures_[task.picture];
  const size_t head_dim = shape_.head_dim();
  const size_t count = std::min(kernels::kDenseQueries, picture.count() - task.begin);
  const Span2d<float> queries =
      queries_.row_range(picture.begin + task.begin, count).col_range(task.head * head_dim, head_dim);
  const size_t begin = head_begin(task.picture, task.head);
  math_.kernels().dense_attention({.q = queries.data,
                                   .q_stride = queries.stride,
                                   .queries = count,
                                   .keys = keys_.data() + begin,
                                   .values = values_.data() + begin,
                                   .count = picture.count(),
                                   .width = head_dim,
                                   .scale = 1.0F / std::sqrt(static_cast<float>(head_dim)),
                                   .out = queries.data,
                                   .out_stride = queries.stride,
                                   .scratch = scratch.data()});
  for (size_t i = 0; i < count; ++i)
    math_.round(queries.row(i));
}

/// Softmax of the queries' scores against all keys of the picture, times the values; takes the queries' place.
void TowerAttention::attend_block(const Task& task, Span2d<float> scores) {
  const PictureRows& picture = pictures_[task.picture];
  const size_t head_dim = shape_.head_dim();
  const size_t keys = picture.count();
  const size_t keys_padded = padded(keys);
  const size_t count = std::min(kQueries, keys - task.begin);
  const size_t begin = head_begin(task.picture, task.head);
  const MatrixView key_matrix{format_, keys, head_dim, keys_.data() + begin, nullptr};
  const MatrixView value_matrix{format_, head_dim, keys_padded, values_.data() + begin, nullptr};
  const Span2d<float> queries =
      queries_.row_range(picture.begin + task.begin, count).col_range(task.head * head_dim, head_dim);
  const Span2d<float> used = scores.row_range(0, count).col_range(0, keys_padded);
  linear_range(math_.kernels(), {key_matrix, queries, used.col_range(0, keys)}, 0, keys);
  const float scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
  float sums[kQueries];
  for (size_t i = 0; i < count; ++i) {
    const std::span<float> row = used.row(i);
    sums[i] = math_.kernels().softmax_terms(row.data(), keys, scale);
    math_.round(row.first(keys));  // for the product only: the sum has the terms unrounded
    std::ranges::fill(row.subspan(keys), 0.0F);
  }
  linear_range(math_.kernels(), {value_matrix, used, queries}, 0, head_dim);
  for (size_t i = 0; i < count; ++i) {
    for (float& value : queries.row(i))
      value /= sums[i];
    math_.round(queries.row(i));
  }
}

void TowerAttention::attend() {
  const Arena::Scope scope(arena_);
  const size_t queries = is_packed_ ? kernels::kDenseQueries : kQueries;
  std::vector<Task> tasks;
  for (size_t p = 0; p < pictures_.size(); ++p) {
    for (size_t head = 0; head < shape_.heads; ++head) {
      for (size_t begin = 0; begin < pictures_[p].count(); begin += queries)
        tasks.push_back({p, head, begin});
    }
  }
  if (is_packed_) {
    const Span2d<float> scratch =
        arena_.matrix(math_.workers(), kernels::dense_scratch_floats(most_keys_, shape_.head_dim()));
    math_.for_rows(tasks.size(), [&](size_t task, size_t worker) { attend_packed(tasks[task], scratch.row(worker)); });
    return;
  }
  const Span2d<float> scores = arena_.matrix(math_.workers() * kQueries, most_keys_);
  math_.for_rows(tasks.size(), [&](size_t task, size_t worker) {
    attend_block(tasks[task], scores.row_range(worker * kQueries, kQueries));
  });
}

void TowerAttention::run(const VisionBlockWeights& weights, Span2d<float> x) {
  TIDEPOOL_CHECK(x.rows == queries_.rows && x.cols == shape_.width, "the rows are the batch's");
  for (size_t p = 0; p < pictures_.size(); ++p) {
    for (size_t begin = 0; begin < pictures_[p].count(); begin += kChunkRows)
      take_rows(weights, x, {p, begin, std::min(kChunkRows, pictures_[p].count() - begin)});
  }
  attend();
  for (size_t begin = 0; begin < x.rows; begin += kChunkRows) {
    const Arena::Scope scope(arena_);
    const size_t count = std::min(kChunkRows, x.rows - begin);
    const Span2d<float> out = arena_.matrix(count, shape_.width);
    biased_linear(math_, weights.wo, queries_.row_range(begin, count), out);
    add_rows(math_, out, x.row_range(begin, count));
  }
}

}  // namespace tidepool::vision
