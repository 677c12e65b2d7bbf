#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tidepool {

/// Where generation goes on from a prompt, and so in which state its output begins.
enum class OutputStart {
  kReasoning,     ///< after <think>
  kContent,       ///< at the head of an answer: leading newlines are layout
  kContinuation,  ///< inside an answer whose beginning the prompt holds: newlines are text
  kCalls,         ///< inside a calls block that the prompt opened
};

/// "reasoning", "content" (also for a continuation) or "calls".
[[nodiscard]] std::string_view output_start_name(OutputStart start);

struct CompletionParserOptions {
  OutputStart start = OutputStart::kContent;
  /// Whether tools were offered. Without them call markup is ordinary text.
  bool has_tools = false;
  /// None empty. Looked for in the answer as the reader sees it: not in reasoning, calls or dropped layout.
  std::vector<std::string> stops{};
};

/// What happened in the output, in order.
struct CompletionEvent {
  enum class Kind {
    kReasoning,      ///< `text`: more reasoning
    kContent,        ///< `text`: more of the answer
    kToolCallStart,  ///< call `call_index` begins; `text` is its name as written, `space::name` if it has a namespace
    kArguments,      ///< `text`: more of that call's arguments, a JSON text
    kToolCallEnd,    ///< that call is complete
    kStop,           ///< stop sequence number `stop_index` was met; nothing follows
  };
  Kind kind = Kind::kContent;
  std::string text;
  /// kToolCallStart, kArguments, kToolCallEnd: counted from 0.
  size_t call_index = 0;
  /// kToolCallStart: `text` split at its "::" (space empty: none).
  std::string space;
  std::string name;
  /// kStop: index into the options' `stops`.
  size_t stop_index = 0;
};

/// Reads generated text (without its end-of-sentence token) while it is produced. The concatenated events do not depend
/// on how the text is cut into pieces, even inside UTF-8 sequences: text that may still become a marker or stop
/// sequence is held back. If pieces end at UTF-8 boundaries, so do the events' texts.
///
/// Tolerant: markup of this and the previous model generation, with or without line breaks; a calls block without its
/// opening tag or inside reasoning; a parameter or call without its closing tag, which the next one then ends; a
/// closing tag out of place. An output cut short leaves its last call without kToolCallEnd.
class CompletionParser {
 public:
  /// Throws Error(kInvalidArgument) when a stop sequence is empty.
  explicit CompletionParser(CompletionParserOptions options);
  CompletionParser(const CompletionParser&) = delete;
  CompletionParser& operator=(const CompletionParser&) = delete;
  CompletionParser(CompletionParser&&) noexcept;
  CompletionParser& operator=(CompletionParser&&) noexcept;
  ~CompletionParser();

  /// Reads the next piece.
  [[nodiscard]] std::vector<CompletionEvent> feed(std::string_view piece);
  /// The output is over: releases what was held back. Nothing may be fed after it.
  [[nodiscard]] std::vector<CompletionEvent> finish();
  /// Nothing that follows can give an event: a stop sequence was met, or the calls block is closed.
  [[nodiscard]] bool is_done() const;
  /// Whether the output is still in its reasoning.
  [[nodiscard]] bool is_reasoning() const;

 private:
  class Automaton;
  std::unique_ptr<Automaton> automaton_;
};

/// A whole output put together from its events.
struct Completion {
  struct Call {
    /// As written, `space::name` if it has a namespace.
    std::string name;
    std::string arguments;
    bool is_complete = false;
  };
  std::string reasoning;
  std::string content;
  std::vector<Call> calls;
  bool has_hit_stop = false;

  void add(const std::vector<CompletionEvent>& events);
};

/// Reads a whole output at once.
[[nodiscard]] Completion parse_completion(std::string_view text, const CompletionParserOptions& options);

}  // namespace tidepool
