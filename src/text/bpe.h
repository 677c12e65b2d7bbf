#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tidepool {

/// The letters by which a `tokenizer.json` writes bytes: 33-126, 161-172 and 174-255 stand for themselves as code
/// points, the other 68 bytes in ascending order for U+0100 to U+0143.
///
/// `bytes` in these letters, as UTF-8.
[[nodiscard]] std::string byte_letters(std::string_view bytes);
/// The inverse; nothing when `letters` has a character that is no such letter.
[[nodiscard]] std::optional<std::string> bytes_of_letters(std::string_view letters);

/// Which pairs of tokens merge, into what, and in which order.
class BpeMerges {
 public:
  struct Merge {
    uint32_t rank = 0;  ///< place in the list of merges; lower merges first
    int32_t merged = 0;
  };

  /// Room for `count` merges.
  explicit BpeMerges(size_t count);

  /// Makes the pair merge with the next rank; false when it has one already. Ids are not negative. At most as many
  /// calls as there is room.
  [[nodiscard]] bool add(int32_t left, int32_t right, int32_t merged);

  /// Null when the pair does not merge.
  [[nodiscard]] const Merge* find(int32_t left, int32_t right) const noexcept;

 private:
  struct Slot {
    uint64_t pair = kFree;
    Merge merge;
  };
  static constexpr uint64_t kFree = ~uint64_t{0};

  [[nodiscard]] size_t slot_of(uint64_t pair) const noexcept;

  std::vector<Slot> slots_;  ///< open addressing, at most half full, a power of two
  int shift_ = 0;            ///< of a 64-bit hash, to a slot number
  uint32_t count_ = 0;
  size_t room_ = 0;
};

/// Byte pair encoding of pieces, one after the other. Keeps its working memory between them; one per thread.
class BpeEncoder {
 public:
  /// `byte_ids` [256], the token of each byte, and `merges` must outlive the encoder.
  BpeEncoder(const std::vector<int32_t>& byte_ids, const BpeMerges& merges) : byte_ids_(byte_ids), merges_(merges) {}

  /// Starts from single bytes and merges the adjacent pair of lowest rank, leftmost first among equals, until none
  /// is left; appends the ids. Time n log n in the bytes of the piece, of which there are less than 2^32.
  void append(std::string_view piece, std::vector<int32_t>& ids);

 private:
  struct Symbol {
    int32_t id = 0;
    uint32_t previous = 0;
    uint32_t next = 0;
    BpeMerges::Merge merge;  ///< of this symbol with the next; rank kNoRank: none
  };

  void find_merge(uint32_t position);
  void merge_at(uint32_t position);

  const std::vector<int32_t>& byte_ids_;
  const BpeMerges& merges_;
  std::vector<Symbol> symbols_;  ///< one per byte; a merged pair lives on in its first
  std::vector<uint64_t> heap_;   ///< rank and position of possible merges, lowest on top; some are out of date
};

}  // namespace tidepool
