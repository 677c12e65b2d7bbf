#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/config.h"
#include "kv/sequence_state.h"

namespace tidepool {

/// The hash of Engram: for each layer, n-gram order and head a row of the layer's table, from the last n compressed
/// token ids. Constants are derived from the config (primes by search, multipliers from NumPy's generator). (model
/// notes 2.8, docs/numerics.md)
class EngramHash {
 public:
  /// `token_map`[id] is the compressed id of token `id`. Throws Error(kUnsupported) when the derived table sizes differ
  /// from the config's, or the map's from the compressed vocabulary.
  EngramHash(const EngramConfig& config, std::vector<int32_t> token_map);

  /// Table rows a token reads in one layer: (max_ngram_size - 1) * n_heads.
  [[nodiscard]] size_t columns() const { return columns_; }
  [[nodiscard]] int64_t pad_id() const { return pad_; }  ///< compressed id that stands for "nothing here"
  [[nodiscard]] std::span<const int32_t> token_map() const { return token_map_; }
  /// Constants of the layer at `slot` among EngramConfig::layer_ids: the size and the first row of each column's part
  /// of the table, both [columns()], and the factor of each token of an n-gram, [max_ngram_size], the newest first.
  [[nodiscard]] std::span<const int64_t> primes(size_t slot) const { return layers_[slot].primes; }
  [[nodiscard]] std::span<const int64_t> offsets(size_t slot) const { return layers_[slot].offsets; }
  [[nodiscard]] std::span<const int64_t> multipliers(size_t slot) const { return layers_[slot].multipliers; }

  /// Table rows of the token at `position` of `tokens`, [columns()], all heads of the 2-grams first, then the 3-grams.
  /// Looks back at most max_ngram_size - 1 positions; before the start, and from an image position backwards,
  /// everything counts as padding.
  void rows(size_t slot, std::span<const InputToken> tokens, int64_t position, std::span<int64_t> out) const;

  /// The same from compressed ids, dead positions being -1.
  void rows_of_compressed(size_t slot, std::span<const int32_t> compressed, int64_t position,
                          std::span<int64_t> out) const;

 private:
  struct Layer {
    std::vector<int64_t> primes;   ///< [columns]
    std::vector<int64_t> offsets;  ///< [columns]
    std::vector<int64_t> multipliers;
  };
  /// ids[s] is the compressed id s positions back, -1 when dead or before the start.
  void hash(const Layer& layer, std::span<const int64_t> ids, std::span<int64_t> out) const;

  int64_t max_ngram_ = 0;
  int64_t heads_ = 0;
  int64_t pad_ = 0;
  size_t columns_ = 0;
  std::vector<int32_t> token_map_;
  std::vector<Layer> layers_;
};

}  // namespace tidepool
