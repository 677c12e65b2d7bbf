#pragma once

#include <memory>

#include "server/answer.h"
#include "server/request_fields.h"

namespace tidepool::chat {

struct WriterOptions {
  StreamOptions stream;
  size_t choice_count = 1;
  bool is_thinking = true;
  bool has_logprobs = false;
  bool returns_ids = false;  ///< vLLM's return_token_ids: the choices' token ids
};

/// Writes chat completions, whole or as chunks.
[[nodiscard]] std::unique_ptr<AnswerWriter> make_writer(AnswerInfo info, const WriterOptions& options);

}  // namespace tidepool::chat
