#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "session/stop_finder.h"
#include "text/completion_parser.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace tidepool {

/// How the tokens of an output are read.
struct OutputFormat {
  enum class Kind : uint8_t {
    kIds,   ///< not at all: ids in, ids out
    kRaw,   ///< as text, all of it content
    kChat,  ///< as an assistant's turn: reasoning, content, calls
  } kind = Kind::kChat;
  OutputStart start = OutputStart::kContent;  ///< kChat
  bool has_tools = false;                     ///< kChat
  bool shows_special_tokens = false;          ///< kRaw
  /// kRaw: looked for everywhere; kChat: in the answer only.
  std::vector<std::string> stops;
};

/// Turns the tokens of one output, as they come, into events. The text of special tokens shows only where a raw format
/// asks for it; in an assistant's turn never, except that of the markers the format itself is made of.
class OutputReader {
 public:
  /// `tokenizer` may be null for kIds; otherwise it must outlive the reader.
  OutputReader(const Tokenizer* tokenizer, const OutputFormat& format);

  /// The next token. Stop tokens are not part of the text and must not be given.
  [[nodiscard]] std::vector<CompletionEvent> feed(int32_t id);
  /// The output is over.
  [[nodiscard]] std::vector<CompletionEvent> finish();

  /// Whether the text of this token never shows. Not for kIds.
  [[nodiscard]] bool is_hidden(int32_t id) const;
  /// Nothing that follows can give an event.
  [[nodiscard]] bool is_done() const;
  [[nodiscard]] bool is_reasoning() const;
  /// The stop string that was met, as an index into the format's `stops`.
  [[nodiscard]] std::optional<size_t> stop_index() const { return stop_index_; }

 private:
  [[nodiscard]] std::vector<CompletionEvent> read(const std::string& text);
  void note_stop(const std::vector<CompletionEvent>& events);

  const Tokenizer* tokenizer_;
  bool shows_special_ = false;
  std::optional<Detokenizer> detokenizer_;
  std::variant<std::monostate, StopFinder, CompletionParser> parser_;
  std::vector<int32_t> markers_;  ///< tokens that the parser must see though a tokenizer may flag them special
  std::optional<size_t> stop_index_;
};

}  // namespace tidepool
