#pragma once

#include "kernels/amx_emulator.h"

namespace tidepool::kernels {
namespace {

/// AmxEmulator with the functions of HardwareTiles.
struct EmulatedTiles {
  AmxEmulator emulator;

  void configure(const TileConfig& config) { emulator.configure(config); }
  void release() { emulator.release(); }
  template <int kTile>
  void zero() {
    emulator.zero(kTile);
  }
  template <int kTile>
  void load(const void* from, size_t stride) {
    emulator.load(kTile, from, stride);
  }
  template <int kTile>
  void store(void* to, size_t stride) {
    emulator.store(kTile, to, stride);
  }
  template <int kSum, int kA, int kB>
  void multiply() {
    emulator.multiply(kSum, kA, kB);
  }
};

}  // namespace
}  // namespace tidepool::kernels
