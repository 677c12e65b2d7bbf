#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tidepool {

struct TokenizerTables;

/// A stretch of text to encode: one control token, or text in which nothing is a control token whatever it looks like.
struct TextRun {
  std::string_view text;
  bool is_control_token = false;
};

/// Byte-level BPE as a checkpoint's `tokenizer.json` defines it: text to token ids and back. Immutable; any number of
/// threads may use one.
///
/// Text that is not UTF-8 is encoded like any other: a maximal invalid subpart counts as one unassigned character where
/// text is split, and its bytes become byte tokens. Decoding gives the same bytes back for every input.
class Tokenizer {
 public:
  /// The longest text that is encoded in one call, 1 GiB. Requests have far lower limits; this one keeps positions in
  /// 32 bits.
  static constexpr size_t kTextBytesMax = size_t{1} << 30;
  /// The largest file that is read; the released one has 8 MB.
  static constexpr uint64_t kFileBytesMax = uint64_t{1} << 28;

  /// Reads a `tokenizer.json`. Throws Error: kNotFound or kIo for the file, kCorrupt, kUnsupported or
  /// kResourceExhausted for what it says, naming the key and what is supported.
  [[nodiscard]] static Tokenizer load(const std::filesystem::path& path);
  /// The same from the text of a file; `name` stands for it in messages.
  [[nodiscard]] static Tokenizer parse(std::string_view json, const std::string& name);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  Tokenizer(Tokenizer&& other) noexcept;
  Tokenizer& operator=(Tokenizer&& other) noexcept;

  /// The ids of a text in which added tokens are recognised, leftmost first, the longest at one place, also inside
  /// words. Nothing is put before or behind. Throws Error(kResourceExhausted) beyond kTextBytesMax; the two functions
  /// below do as well.
  [[nodiscard]] std::vector<int32_t> encode(std::string_view text) const;
  /// The ids of a text in which no added token is recognised.
  [[nodiscard]] std::vector<int32_t> encode_plain(std::string_view text) const;
  /// The ids of a prompt: control tokens where the runs say so, and every stretch of other runs, joined, as plain text.
  /// A user who writes a control token's text gets its letters. Throws Error(kUnsupported) when a control token is not
  /// one of this tokenizer's added tokens.
  [[nodiscard]] std::vector<int32_t> encode_runs(std::span<const TextRun> runs) const;

  /// The bytes that the ids stand for, added tokens included. Ids without a token stand for nothing. May be broken
  /// UTF-8: see replace_invalid_utf8, and Detokenizer for text that comes token by token.
  [[nodiscard]] std::string decode(std::span<const int32_t> ids) const;

  /// The bytes of one token; empty for ids without one. Lives as long as the tokenizer.
  [[nodiscard]] std::string_view token_bytes(int32_t id) const noexcept;
  /// The token as `tokenizer.json` writes it: in byte letters (see bpe.h), or an added token's text.
  [[nodiscard]] std::string token_letters(int32_t id) const;
  /// Whether the file flags the token as special: text for people leaves it out.
  [[nodiscard]] bool is_special(int32_t id) const noexcept;
  /// Whether the token is an added one, which byte pair encoding does not make.
  [[nodiscard]] bool is_added(int32_t id) const noexcept;

  /// The id of the token that stands for exactly these bytes, an added one first.
  [[nodiscard]] std::optional<int32_t> find_token(std::string_view bytes) const;
  /// The id of the added token with this text.
  [[nodiscard]] std::optional<int32_t> find_added_token(std::string_view text) const;

  /// The highest id plus one. A checkpoint may have more embedding rows than that, never fewer.
  [[nodiscard]] size_t vocabulary_size() const noexcept;
  /// What messages call it: the path of its file.
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  Tokenizer(std::unique_ptr<const TokenizerTables> tables, std::string name);

  std::unique_ptr<const TokenizerTables> tables_;
  std::string name_;
};

}  // namespace tidepool
