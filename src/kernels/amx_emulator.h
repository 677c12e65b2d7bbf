#pragma once

#include <cstddef>

#include "kernels/amx_tile_config.h"

namespace tidepool::kernels {

/// Eight tiles and their instructions in plain C++, after Intel's instruction set reference ("TDPBF16PS", operation):
/// what is written for tiles can be tested on processors that have none. Where the processor would fault, this ends the
/// process. Nothing here is for speed.
class AmxEmulator {
 public:
  AmxEmulator();
  /// Ends the process when the tiles were not released.
  ~AmxEmulator();
  AmxEmulator(const AmxEmulator&) = delete;
  AmxEmulator& operator=(const AmxEmulator&) = delete;

  void configure(const TileConfig& config);
  void release();
  void zero(size_t tile);
  void load(size_t tile, const void* from, size_t stride);
  void store(size_t tile, void* to, size_t stride) const;
  /// For each m, n: the products of even columns are added up in order, the products of odd columns likewise, each step
  /// a fused multiply-add in binary32 from 0; the two sums are added, and that is added to sum[m, n]. Everything rounds
  /// to nearest even; subnormal operands count as zero, and subnormal results become zero.
  void multiply(size_t sum, size_t a, size_t b);

 private:
  void check_configured(size_t tile) const;

  TileConfig config_;
  bool is_configured_ = false;
  alignas(64) std::byte tiles_[kTileCount][kTileSide][kTileRowBytes];
};

}  // namespace tidepool::kernels
