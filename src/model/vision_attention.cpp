#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/runtime.h"
#include "model/vision_internal.h"

namespace tidepool::vision {
namespace {

/// Queries that are worked on at a time: enough that the keys, which come from the second-level cache, are used often.
constexpr size_t kQueries = 64;
/// Keys are padded to a multiple of this where they are summed over.
constexpr size_t kKeyPadding = 32;

size_t padded(size_t count) {
  return (count + kKeyPadding - 1) / kKeyPadding * kKeyPadding;
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
      // Keys and values are the weights of two products, so they are stored as the numerics have them.
      format_(math.numerics().round_to_bf16 ? MatrixFormat::kBf16 : MatrixFormat::kFloat32) {
  size_t value_columns = 0;
  for (size_t p = 0; p < pictures_.size(); ++p) {
    picture_of_row_.insert(picture_of_row_.end(), pictures_[p].count(), p);
    value_begin_.push_back(value_columns);
    value_columns += padded(pictures_[p].count());
    most_keys_ = std::max(most_keys_, padded(pictures_[p].count()));
  }
  const size_t rows = picture_of_row_.size();
  queries_ = arena.matrix(rows, shape.width);
  keys_ = Buffer<std::byte>(rows * shape.width * bytes_per_value(format_));
  values_ = Buffer<std::byte>(value_columns * shape.width * bytes_per_value(format_));
  cos_ = arena.matrix(rows, shape.head_dim() / 2);
  sin_ = arena.matrix(rows, shape.head_dim() / 2);
  make_angles();
}

/// The first half of a patch's angles are its row times the frequencies, the others its column times the same.
void TowerAttention::make_angles() {
  const size_t per_axis = shape_.head_dim() / 4;
  std::vector<float> frequencies;
  for (size_t i = 0; i < per_axis; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(2 * per_axis);
    frequencies.push_back(1.0F / std::pow(static_cast<float>(shape_.rope_theta), exponent));
  }
  for (size_t row = 0; row < picture_of_row_.size(); ++row) {
    const PictureRows& picture = pictures_[picture_of_row_[row]];
    const size_t patch = row - picture.begin;
    const size_t places[2] = {patch / picture.patch_columns, patch % picture.patch_columns};
    for (size_t axis = 0; axis < 2; ++axis) {
      for (size_t i = 0; i < per_axis; ++i) {
        const float angle = static_cast<float>(places[axis]) * frequencies[i];
        cos_.row(row)[axis * per_axis + i] = std::cos(angle);
        sin_.row(row)[axis * per_axis + i] = std::sin(angle);
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

/// Queries, keys and values of rows [begin, begin + x.rows), x being those rows.
void TowerAttention::take_rows(const VisionBlockWeights& weights, Span2d<const float> x, size_t begin) {
  const Arena::Scope scope(arena_);
  const size_t width = shape_.width;
  const size_t head_dim = shape_.head_dim();
  const Span2d<float> normed = arena_.matrix(x.rows, width);
  math_.rms_norm_rows(x, weights.norm1, kNormEps, normed);
  const Span2d<float> qkv = arena_.matrix(x.rows, 3 * width);
  biased_linear(math_, weights.wqkv, normed, qkv);
  math_.for_rows(x.rows, [&](size_t i, size_t) {
    const size_t row = begin + i;
    const PictureRows& picture = pictures_[picture_of_row_[row]];
    const size_t patch = row - picture.begin;
    const size_t patches_padded = padded(picture.count());
    const std::span<float> values = qkv.row(i);
    rotate(values.first(2 * width), row);
    std::ranges::copy(values.first(width), queries_.row(row).begin());
    const size_t key_begin = picture.begin * width + patch * head_dim;
    const size_t value_begin = value_begin_[picture_of_row_[row]] * width + patch;
    for (size_t head = 0; head < shape_.heads; ++head) {
      for (size_t c = 0; c < head_dim; ++c) {
        const size_t channel = head * head_dim + c;
        store(format_, keys_.span(), key_begin + head * picture.count() * head_dim + c, values[width + channel]);
        store(format_, values_.span(), value_begin + channel * patches_padded, values[2 * width + channel]);
      }
    }
  });
}

/// Softmax of the queries' scores against all keys of the picture, times the values; takes the queries' place.
void TowerAttention::attend_block(const Task& task, Span2d<float> scores) {
  const PictureRows& picture = pictures_[task.picture];
  const size_t head_dim = shape_.head_dim();
  const size_t keys = picture.count();
  const size_t keys_padded = padded(keys);
  const size_t count = std::min(kQueries, keys - task.begin);
  const size_t value_bytes = bytes_per_value(format_);
  const MatrixView key_matrix{format_, keys, head_dim,
                              keys_.data() + (picture.begin * shape_.width + task.head * keys * head_dim) * value_bytes,
                              nullptr};
  const MatrixView value_matrix{
      format_, head_dim, keys_padded,
      values_.data() + (value_begin_[task.picture] * shape_.width + task.head * head_dim * keys_padded) * value_bytes,
      nullptr};
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
  std::vector<Task> tasks;
  for (size_t p = 0; p < pictures_.size(); ++p) {
    for (size_t head = 0; head < shape_.heads; ++head) {
      for (size_t begin = 0; begin < pictures_[p].count(); begin += kQueries)
        tasks.push_back({p, head, begin});
    }
  }
  const Span2d<float> scores = arena_.matrix(math_.workers() * kQueries, most_keys_);
  math_.for_rows(tasks.size(), [&](size_t task, size_t worker) {
    attend_block(tasks[task], scores.row_range(worker * kQueries, kQueries));
  });
}

void TowerAttention::run(const VisionBlockWeights& weights, Span2d<float> x) {
  TIDEPOOL_CHECK(x.rows == picture_of_row_.size() && x.cols == shape_.width, "the rows are the batch's");
  for (size_t begin = 0; begin < x.rows; begin += kChunkRows)
    take_rows(weights, x.row_range(begin, std::min(kChunkRows, x.rows - begin)), begin);
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
