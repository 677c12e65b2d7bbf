#pragma once

#include <memory>
#include <set>
#include <string>

#include "server/answer.h"
#include "text/json.h"

namespace tidepool::responses {

struct WriterOptions {
  bool is_stream = false;
  bool is_thinking = true;
  bool has_logprobs = false;
  bool allows_parallel_calls = true;
  double temperature = 1;
  double top_p = 1;
  std::set<std::string> custom_tools;  ///< whose input is text, not JSON
  Json echoes = Json::make_object();   ///< fields of the request that the response repeats
};

/// Writes a response, whole or as events.
[[nodiscard]] std::unique_ptr<AnswerWriter> make_writer(AnswerInfo info, WriterOptions options);

}  // namespace tidepool::responses
