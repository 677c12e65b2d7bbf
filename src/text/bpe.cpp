#include "text/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <limits>

#include "base/check.h"
#include "text/unicode.h"

namespace tidepool {
namespace {

constexpr bool is_own_letter(uint32_t byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

constexpr std::array<char32_t, 256> kLetterOfByte = [] {
  std::array<char32_t, 256> letters{};
  char32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte)
    letters[byte] = is_own_letter(byte) ? byte : next++;
  return letters;
}();

/// 256 - 188 bytes stand for letters from U+0100 on.
constexpr char32_t kLetterCount = 0x100 + 68;

/// -1: no letter.
constexpr std::array<int, kLetterCount> kByteOfLetter = [] {
  std::array<int, kLetterCount> bytes{};
  bytes.fill(-1);
  for (int byte = 0; byte < 256; ++byte)
    bytes[kLetterOfByte[static_cast<size_t>(byte)]] = byte;
  return bytes;
}();

constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();
constexpr uint32_t kEnd = std::numeric_limits<uint32_t>::max();

uint64_t pair_of(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

}  // namespace

std::string byte_letters(std::string_view bytes) {
  std::string letters;
  for (const char byte : bytes)
    append_utf8(kLetterOfByte[static_cast<uint8_t>(byte)], letters);
  return letters;
}

std::optional<std::string> bytes_of_letters(std::string_view letters) {
  std::string bytes;
  for (size_t position = 0; position < letters.size();) {
    const Utf8Unit unit = read_utf8_unit(letters, position);
    if (unit.code_point >= kLetterCount || kByteOfLetter[unit.code_point] < 0) return std::nullopt;
    bytes += static_cast<char>(kByteOfLetter[unit.code_point]);
    position += unit.length;
  }
  return bytes;
}

BpeMerges::BpeMerges(size_t count) : room_(count) {
  const size_t slot_count = std::bit_ceil(std::max<size_t>(2 * count, 2));
  slots_.resize(slot_count);
  shift_ = 64 - std::countr_zero(slot_count);
}

bool BpeMerges::add(int32_t left, int32_t right, int32_t merged) {
  TIDEPOOL_CHECK(left >= 0 && right >= 0 && merged >= 0, "token ids are not negative");
  TIDEPOOL_CHECK(count_ < room_, "more merges than there is room for");
  Slot& slot = slots_[slot_of(pair_of(left, right))];
  if (slot.pair != kFree) return false;
  slot = {pair_of(left, right), {count_++, merged}};
  return true;
}

const BpeMerges::Merge* BpeMerges::find(int32_t left, int32_t right) const noexcept {
  const Slot& slot = slots_[slot_of(pair_of(left, right))];
  return slot.pair == kFree ? nullptr : &slot.merge;
}

size_t BpeMerges::slot_of(uint64_t pair) const noexcept {
  // 2^64 divided by the golden ratio: the high bits of the product depend on all bits of the pair (Knuth 6.4).
  size_t index = static_cast<size_t>(pair * 0x9E3779B97F4A7C15 >> shift_);
  while (slots_[index].pair != pair && slots_[index].pair != kFree)
    index = (index + 1) & (slots_.size() - 1);
  return index;
}

void BpeEncoder::append(std::string_view piece, std::vector<int32_t>& ids) {
  TIDEPOOL_CHECK(piece.size() < kEnd, "a piece is too long for 32-bit positions");
  if (piece.empty()) return;
  const auto count = static_cast<uint32_t>(piece.size());
  symbols_.resize(count);
  heap_.clear();
  for (uint32_t i = 0; i < count; ++i) {
    // The first has kEnd, which is 2^32 - 1, before it.
    symbols_[i] = {byte_ids_[static_cast<uint8_t>(piece[i])], i - 1, i + 1 < count ? i + 1 : kEnd, {}};
  }
  for (uint32_t i = 0; i < count; ++i)
    find_merge(i);
  while (!heap_.empty()) {
    std::ranges::pop_heap(heap_, std::greater<>());
    const uint64_t top = heap_.back();
    heap_.pop_back();
    const auto position = static_cast<uint32_t>(top);
    // Ranks belong to one pair of tokens each: with the same rank it is still the same merge.
    if (symbols_[position].merge.rank == top >> 32) merge_at(position);
  }
  for (uint32_t i = 0; i != kEnd; i = symbols_[i].next)
    ids.push_back(symbols_[i].id);
}

void BpeEncoder::find_merge(uint32_t position) {
  Symbol& symbol = symbols_[position];
  const BpeMerges::Merge* merge = symbol.next == kEnd ? nullptr : merges_.find(symbol.id, symbols_[symbol.next].id);
  symbol.merge = merge ? *merge : BpeMerges::Merge{kNoRank, 0};
  if (!merge) return;
  heap_.push_back(uint64_t{merge->rank} << 32 | position);
  std::ranges::push_heap(heap_, std::greater<>());
}

void BpeEncoder::merge_at(uint32_t position) {
  Symbol& left = symbols_[position];
  Symbol& right = symbols_[left.next];
  left.id = left.merge.merged;
  left.next = right.next;
  right.merge.rank = kNoRank;  // what the heap still holds about it is out of date
  if (left.next != kEnd) symbols_[left.next].previous = position;
  find_merge(position);
  if (left.previous != kEnd) find_merge(left.previous);
}

}  // namespace tidepool
