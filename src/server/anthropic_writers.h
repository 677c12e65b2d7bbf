#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/answer.h"

namespace tidepool::messages {

struct WriterOptions {
  bool is_stream = false;
  std::vector<std::string> stops;  ///< to say which one ended the answer
};

/// Writes a message, whole or as events.
[[nodiscard]] std::unique_ptr<AnswerWriter> make_writer(AnswerInfo info, WriterOptions options);

}  // namespace tidepool::messages
