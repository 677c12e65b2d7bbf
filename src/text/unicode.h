#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tidepool {

/// The parts of Unicode that the tokenizer needs, from own tables of version 16.0 (the version the released tokenizer
/// was checked against; a system library's would be whatever is installed). All functions are pure and thread-safe.

/// First letter of the general category, with \s split off: no white space is in one of the five letters' classes.
/// The numbers are those of the table that tools/make_unicode_tables.mjs writes.
enum class UnicodeClass : uint8_t {
  kOther = 0,        ///< everything else: controls, formats, private use, unassigned
  kLetter = 1,       ///< \p{L}
  kMark = 2,         ///< \p{M}
  kNumber = 3,       ///< \p{N}
  kPunctuation = 4,  ///< \p{P}
  kSymbol = 5,       ///< \p{S}
  kSpace = 6,        ///< \s: U+0009-000D, 0020, 0085, 00A0, 1680, 2000-200A, 2028, 2029, 202F, 205F, 3000
};

/// kOther beyond U+10FFFF.
[[nodiscard]] UnicodeClass unicode_class(char32_t code_point) noexcept;

inline constexpr char32_t kCodePointMax = 0x10FFFF;

/// What U+FFFD stands for in text: bytes that are not UTF-8.
inline constexpr char32_t kReplacementCharacter = 0xFFFD;
inline constexpr std::string_view kReplacementText = "\xEF\xBF\xBD";

/// One step of reading UTF-8: a code point, or a maximal subpart of one that is broken (Unicode 16.0 section 3.9, table
/// 3-7): the longest start of a well-formed sequence, or else a single byte.
struct Utf8Unit {
  enum class Kind : uint8_t {
    kCodePoint,
    kBroken,
    kTruncated,  ///< the text ends within a sequence that more bytes could complete
  };
  char32_t code_point = kReplacementCharacter;  ///< U+FFFD unless kCodePoint
  uint32_t length = 0;                          ///< bytes, 1 to 4
  Kind kind = Kind::kBroken;
};

/// The unit that starts at `position`, which must be less than text.size().
[[nodiscard]] Utf8Unit read_utf8_unit(std::string_view text, size_t position) noexcept;

/// `code_point` must not exceed U+10FFFF.
void append_utf8(char32_t code_point, std::string& out);

/// `bytes` with each maximal invalid subpart replaced by one U+FFFD.
[[nodiscard]] std::string replace_invalid_utf8(std::string_view bytes);

/// Appends the full compatibility decomposition (NFKD) of one code point, which may be itself. A text's NFKD is that of
/// its code points after reordering of marks, so text without its marks needs nothing more than this function.
void append_compatibility_decomposition(char32_t code_point, std::u32string& out);

/// Lower case of one code point, without context. U+0130, the only one whose full lower case has two code points,
/// is returned unchanged; it does not occur after decomposition.
[[nodiscard]] char32_t to_lower(char32_t code_point) noexcept;

}  // namespace tidepool
