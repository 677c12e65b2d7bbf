#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/span2d.h"

namespace tidepool {

/// Scratch memory handed out like a stack: what a scope took is free again when the scope ends. Memory once obtained is
/// kept, so a loop whose needs repeat allocates in its first round only. Contents are not zeroed. One thread at a time.
class Arena {
 public:
  /// Frees on destruction all that was taken since it was made. Scopes end in reverse order of their making.
  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), slab_(arena.slab_), used_(arena.used_) {}
    ~Scope() {
      arena_.slab_ = slab_;
      arena_.used_ = used_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    size_t slab_;
    size_t used_;
  };

  /// `count` values on a 64-byte boundary, valid until the innermost scope ends.
  template <typename T>
  [[nodiscard]] std::span<T> take(size_t count) {
    return {reinterpret_cast<T*>(take_bytes(count * sizeof(T))), count};
  }
  /// [rows, cols] floats.
  [[nodiscard]] Span2d<float> matrix(size_t rows, size_t cols) { return {take<float>(rows * cols).data(), rows, cols}; }

  /// Bytes obtained from the system so far.
  [[nodiscard]] size_t bytes_reserved() const;

 private:
  std::byte* take_bytes(size_t bytes);

  std::vector<Buffer<std::byte>> slabs_;
  size_t slab_ = 0;  ///< the slab that is being filled
  size_t used_ = 0;  ///< bytes taken of it
};

}  // namespace tidepool
