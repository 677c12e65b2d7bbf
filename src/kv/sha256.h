#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace tidepool {

/// A SHA-256 digest.
using Digest = std::array<std::byte, 32>;

/// SHA-256 over fields that cannot run into each other: the domain first, numbers as 8 bytes, everything else behind
/// its length. Two hashers agree only when they were given the same fields.
class FieldHasher {
 public:
  /// `domain` says what is hashed, so that digests of different kinds never meet.
  explicit FieldHasher(std::string_view domain);
  FieldHasher(const FieldHasher&) = delete;
  FieldHasher& operator=(const FieldHasher&) = delete;
  ~FieldHasher();

  FieldHasher& add(int64_t value);
  FieldHasher& add(std::span<const std::byte> bytes);
  FieldHasher& add(std::string_view text);
  /// Ends the hashing; call once.
  [[nodiscard]] Digest finish();

 private:
  void update(const void* data, size_t bytes);

  struct Context;
  std::unique_ptr<Context> context_;
};

/// Plain SHA-256.
[[nodiscard]] Digest sha256(std::span<const std::byte> bytes);

}  // namespace tidepool
