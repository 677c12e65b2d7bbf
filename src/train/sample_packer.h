#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "train/sample_source.h"
#include "train/token_batch.h"

namespace tidepool {

/// What a packer takes from one source.
struct MixturePart {
  const SampleSource* source = nullptr;  ///< must outlive the packer
  double weight = 1;                     ///< of its tokens among those of all parts
  double loss_weight = 1;                ///< multiplied to the weights of its samples
};

struct SamplePackerOptions {
  /// Rows of a batch at most; no sample may be longer.
  size_t rows = 0;
  uint64_t seed = 0;
  /// Batches that are packed together. More waste fewer rows and take longer to begin.
  size_t window_batches = 64;
};

/// Fills batches of up to `rows` rows with whole samples of a mixture of sources. Samples of a window of batches are
/// taken from all parts by their share of tokens and packed by best fit, the longest first; the window's batches come
/// in random order. The batches depend on parts, options and position alone.
class SamplePacker {
 public:
  /// How far a part is when a window begins.
  struct PartPosition {
    uint64_t place = 0;   ///< next sample of its source
    uint64_t tokens = 0;  ///< taken so far
    friend bool operator==(const PartPosition&, const PartPosition&) = default;
  };
  /// All that must be kept to go on later.
  struct Position {
    uint64_t window = 0;
    uint64_t batch = 0;  ///< of the window
    std::vector<PartPosition> parts;
    friend bool operator==(const Position&, const Position&) = default;
  };

  /// Throws Error(kInvalidArgument) for options out of range or weights that are not above 0.
  SamplePacker(std::vector<MixturePart> parts, const SamplePackerOptions& options);

  /// The next batch. Throws Error(kInvalidArgument) naming a source whose sample has more tokens than a batch has rows:
  /// dialogues of tasks without a length are as long as they are, which is known when they are drawn.
  [[nodiscard]] TokenBatch next();

  [[nodiscard]] const Position& position() const { return position_; }
  /// Goes on from there. Throws Error: kInvalidArgument when it is of another number of sources, kCorrupt when no
  /// packer of this mixture comes there.
  void seek(const Position& position);

  /// Rows without a token among those that the batches of the current window could have had; 0 before the first.
  [[nodiscard]] double padding_share() const { return padding_share_; }

 private:
  void fill_window();
  [[nodiscard]] std::vector<Sample> take_samples();
  /// Tokens of a part that are taken by the end of so many windows, and less than `rows` more.
  [[nodiscard]] double quota(size_t part, uint64_t windows) const;

  std::vector<MixturePart> parts_;
  SamplePackerOptions options_;
  double weight_sum_ = 0;
  Position position_;
  std::vector<PartPosition> next_parts_;      ///< behind the current window
  std::vector<std::vector<Sample>> batches_;  ///< of the window, in the order they are given
  bool has_window_ = false;
  double padding_share_ = 0;
};

/// Puts samples of these lengths into batches of `rows`: the longest first, each into the fullest batch that has room.
/// Gives each sample's batch; batches count up from 0. No length exceeds `rows`.
[[nodiscard]] std::vector<size_t> pack_best_fit(const std::vector<size_t>& lengths, size_t rows);

/// The samples one after the other.
[[nodiscard]] TokenBatch make_batch(const std::vector<Sample>& samples);

}  // namespace tidepool
