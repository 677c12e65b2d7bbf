#pragma once

#include <vector>

#include "base/arena.h"
#include "base/buffer.h"
#include "model/math.h"
#include "model/vision_weights.h"

/// Parts of the vision tower.
namespace tidepool::vision {

/// The patches of one picture among the rows of a batch, row-major.
struct PictureRows {
  size_t begin = 0;
  size_t patch_rows = 0;
  size_t patch_columns = 0;
  [[nodiscard]] size_t count() const { return patch_rows * patch_columns; }
};

/// Sizes of the tower.
struct TowerShape {
  size_t width = 0;
  size_t heads = 0;
  size_t inner = 0;  ///< of the SwiGLU
  double rope_theta = 0;
  [[nodiscard]] size_t head_dim() const { return width / heads; }
};

/// RMSNorm's epsilon; the text model's is another. (docs/model.md 4.2)
inline constexpr float kNormEps = 1e-6F;

/// Rows that pass through a linear at a time, so that scratch memory does not grow with the batch.
inline constexpr size_t kChunkRows = 2048;

/// y = W x + bias with one rounding point behind it.
void biased_linear(const Math& math, const BiasedLinear& linear, Span2d<const float> x, Span2d<float> y);

/// x += y with a rounding point behind it.
void add_rows(const Math& math, Span2d<const float> y, Span2d<float> x);

/// Attention of a batch: every patch sees all patches of its own picture, none of others. Holds what all blocks share:
/// the angles of each patch and room for queries, keys and values.
class TowerAttention {
 public:
  TowerAttention(const Math& math, Arena& arena, const TowerShape& shape, std::vector<PictureRows> pictures);

  /// x += wo attention(norm1 x) for all rows of the batch, with a rounding point behind it.
  void run(const VisionBlockWeights& weights, Span2d<float> x);

 private:
  void make_angles();
  /// Some patches of one picture.
  struct Rows {
    size_t picture;
    size_t begin;  ///< the first, among the picture's; a multiple of kChunkRows
    size_t count;
  };
  void take_rows(const VisionBlockWeights& weights, Span2d<const float> x, const Rows& rows);
  void rotate(std::span<float> heads, size_t row) const;
  void keep_rows(const Rows& rows, Span2d<const float> keys, Span2d<const float> values);
  void pack_rows(const Rows& rows, Span2d<const float> keys, Span2d<const float> values);
  void attend();
  struct Task {
    size_t picture;
    size_t head;
    size_t begin;  ///< first query, among the picture's
  };
  void attend_block(const Task& task, Span2d<float> scores);
  void attend_packed(const Task& task, std::span<float> scratch);
  /// Where in keys_ and values_ those of a head begin.
  [[nodiscard]] size_t head_begin(size_t picture, size_t head) const;

  const Math& math_;
  Arena& arena_;
  TowerShape shape_;
  std::vector<PictureRows> pictures_;
  bool is_packed_;                 ///< a kernel of its own attends; otherwise two products do
  MatrixFormat format_;            ///< of keys_ and values_
  std::vector<size_t> key_begin_;  ///< of each picture, padded keys of those before it
  size_t most_keys_ = 0;           ///< of a picture, padded
  Span2d<float> cos_;              ///< [rows, head_dim / 2]
  Span2d<float> sin_;
  Span2d<float> queries_;     ///< [rows, width]; attention's output afterwards
  Buffer<std::byte> keys_;    ///< of each picture and head: [keys padded, head_dim], or as the kernel packs them
  Buffer<std::byte> values_;  ///< of each picture and head: [head_dim, keys padded], or as the kernel packs them
};

}  // namespace tidepool::vision
