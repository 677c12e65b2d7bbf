#include "text/unicode.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "base/check.h"
#include "text/unicode_tables.h"

namespace tidepool {
namespace {

/// How a sequence goes on after its first byte: how many bytes in all, and the range of the second. Later bytes are
/// always 80-BF. Length 0: no sequence starts so. (Unicode 16.0 table 3-7)
struct LeadByte {
  uint32_t length;
  uint8_t second_min;
  uint8_t second_max;
};

constexpr LeadByte lead_byte(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};  // not the overlong forms of U+0000-07FF
  if (byte == 0xED) return {3, 0x80, 0x9F};  // not the surrogates U+D800-DFFF
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};  // not the overlong forms of U+0000-FFFF
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};  // not beyond U+10FFFF
  return {0, 0, 0};
}

/// Hangul syllables decompose by arithmetic (Unicode 16.0 section 3.12).
constexpr char32_t kSyllableFirst = 0xAC00;
constexpr char32_t kLeadingFirst = 0x1100;
constexpr char32_t kVowelFirst = 0x1161;
constexpr char32_t kTrailingBeforeFirst = 0x11A7;
constexpr char32_t kVowelCount = 21;
constexpr char32_t kTrailingCount = 28;
constexpr char32_t kSyllableCount = 19 * kVowelCount * kTrailingCount;

void append_hangul(char32_t syllable_index, std::u32string& out) {
  out += kLeadingFirst + syllable_index / (kVowelCount * kTrailingCount);
  out += kVowelFirst + syllable_index % (kVowelCount * kTrailingCount) / kTrailingCount;
  const char32_t trailing = syllable_index % kTrailingCount;
  if (trailing != 0) out += kTrailingBeforeFirst + trailing;
}

}  // namespace

UnicodeClass unicode_class(char32_t code_point) noexcept {
  const size_t block = code_point / 256;
  if (block >= std::size(unicode_tables::kClassIndex)) return UnicodeClass::kOther;
  const size_t word = unicode_tables::kClassIndex[block] * size_t{16} + code_point % 256 / 16;
  return static_cast<UnicodeClass>(unicode_tables::kClassWords[word] >> (code_point % 16 * 4) & 15);
}

Utf8Unit read_utf8_unit(std::string_view text, size_t position) noexcept {
  TIDEPOOL_DCHECK(position < text.size(), "reading past the end of a text");
  const auto byte_at = [&](size_t index) { return static_cast<uint8_t>(text[position + index]); };
  const uint8_t first = byte_at(0);
  if (first < 0x80) return {first, 1, Utf8Unit::Kind::kCodePoint};
  const LeadByte lead = lead_byte(first);
  if (lead.length == 0) return {kReplacementCharacter, 1, Utf8Unit::Kind::kBroken};

  // The first byte carries 7 - length bits: 5, 4 or 3.
  char32_t code_point = first & (0x7FU >> lead.length);
  for (uint32_t i = 1; i < lead.length; ++i) {
    if (position + i >= text.size()) return {kReplacementCharacter, i, Utf8Unit::Kind::kTruncated};
    const uint8_t byte = byte_at(i);
    const uint8_t byte_min = i == 1 ? lead.second_min : 0x80;
    const uint8_t byte_max = i == 1 ? lead.second_max : 0xBF;
    if (byte < byte_min || byte > byte_max) return {kReplacementCharacter, i, Utf8Unit::Kind::kBroken};
    code_point = code_point << 6 | (byte & 0x3FU);
  }
  return {code_point, lead.length, Utf8Unit::Kind::kCodePoint};
}

void append_utf8(char32_t code_point, std::string& out) {
  TIDEPOOL_CHECK(code_point <= kCodePointMax, "not a code point");
  const auto append = [&out](char32_t byte) { out += static_cast<char>(byte); };
  if (code_point < 0x80) {
    append(code_point);
    return;
  }
  if (code_point < 0x800) {
    append(0xC0 | code_point >> 6);
  } else {
    if (code_point < 0x10000) {
      append(0xE0 | code_point >> 12);
    } else {
      append(0xF0 | code_point >> 18);
      append(0x80 | (code_point >> 12 & 0x3F));
    }
    append(0x80 | (code_point >> 6 & 0x3F));
  }
  append(0x80 | (code_point & 0x3F));
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (size_t position = 0; position < bytes.size();) {
    const Utf8Unit unit = read_utf8_unit(bytes, position);
    if (unit.kind == Utf8Unit::Kind::kCodePoint) {
      text.append(bytes, position, unit.length);
    } else {
      text += kReplacementText;
    }
    position += unit.length;
  }
  return text;
}

void append_compatibility_decomposition(char32_t code_point, std::u32string& out) {
  if (code_point < 0x80) {
    out += code_point;
    return;
  }
  if (code_point >= kSyllableFirst && code_point - kSyllableFirst < kSyllableCount) {
    append_hangul(code_point - kSyllableFirst, out);
    return;
  }
  const auto* const run =
      std::ranges::upper_bound(unicode_tables::kSingleRuns, code_point, {}, &unicode_tables::SingleRun::first);
  if (run != std::begin(unicode_tables::kSingleRuns) && code_point - run[-1].first < run[-1].count) {
    out += run[-1].target + (code_point - run[-1].first);
    return;
  }
  const auto* const entry =
      std::ranges::lower_bound(unicode_tables::kLongEntries, code_point, {}, &unicode_tables::LongEntry::source);
  if (entry != std::end(unicode_tables::kLongEntries) && entry->source == code_point) {
    for (uint32_t i = 0; i < entry->length; ++i)
      out += unicode_tables::kPool[entry->offset + i];
    return;
  }
  out += code_point;
}

char32_t to_lower(char32_t code_point) noexcept {
  const auto* const after =
      std::ranges::upper_bound(unicode_tables::kLowerRuns, code_point, {}, &unicode_tables::LowerRun::first);
  if (after == std::begin(unicode_tables::kLowerRuns)) return code_point;
  const unicode_tables::LowerRun& run = after[-1];
  if (code_point > run.last || (code_point - run.first) % run.step != 0) return code_point;
  return static_cast<char32_t>(static_cast<int64_t>(code_point) + run.delta);
}

}  // namespace tidepool
