#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace tidepool {

/// What `tidepool vectors KIND` computes from one line of JSON; docs/vectors.md has the fields of each.
enum class VectorKind {
  kTokenize,     ///< "tokenize": text to ids
  kDetokenize,   ///< "detokenize": ids to bytes, text and what a stream would send
  kEncode,       ///< "encode": messages to a prompt
  kRequest,      ///< "request": a chat completions request to a prompt
  kPromptIds,    ///< "prompt-ids": a prompt, messages or a request to ids
  kParse,        ///< "parse": a finished completion to a message, strictly
  kParseStream,  ///< "parse-stream": generated text to reasoning, answer and calls, as the server reads it
};

/// The kind of that name; nothing for any other name.
[[nodiscard]] std::optional<VectorKind> try_vector_kind(std::string_view name);
/// Whether answers of this kind need a tokenizer.
[[nodiscard]] bool needs_tokenizer(VectorKind kind);

/// Computes the answer to one line: one line of JSON without its newline, with the `id` or `name` of the input and the
/// computed fields. Input that is refused gives {"error": true, "reason": ...}; nothing is thrown for it.
/// `tokenizer` may be null when needs_tokenizer(kind) is false.
[[nodiscard]] std::string answer_vector(VectorKind kind, std::string_view line, const Tokenizer* tokenizer);

}  // namespace tidepool
