#pragma once

#include <cstddef>

#include "kernels/amx_tile_config.h"

// The one place of tile instructions. They are written in assembly, not taken from the compiler: gcc 12's own
// intrinsics say of a tile load that it reads no memory, and of the configuration that it reads 8 bytes of the 64, so
// stores which they depend on are thrown away. The assembler needs no flag to know them.
//
// The operating system must have given the process leave before the first of them (kernels/amx_status.h).

namespace tidepool::kernels {
namespace {

/// The tile registers of the calling thread. Between configure and release, and nowhere else, the other functions may
/// be called. Tile numbers are part of the instruction, hence of the template.
struct HardwareTiles {
  static void configure(const TileConfig& config) { asm volatile("ldtilecfg %0" : : "m"(config) : "memory"); }
  /// Forgets tiles and configuration. A thread that keeps them makes every switch to another one slower.
  static void release() { asm volatile("tilerelease" : : : "memory"); }

  template <int kTile>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile) : "memory");
  }
  /// Row r of the tile is at `from` + r * stride bytes.
  template <int kTile>
  static void load(const void* from, size_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static void store(void* to, size_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  /// TDPBF16PS: sum[m, n] += a[m] . b[n] over the 32 columns of the step. Row m of `a` is 32 bfloat16; row p of `b` is,
  /// for each n, columns 2p and 2p + 1.
  template <int kSum, int kA, int kB>
  static void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB) : "memory");
  }
};

}  // namespace
}  // namespace tidepool::kernels
