// Any bytes as a request: read and rendered, or refused with an Error. The same bytes as messages of the reference
// encoder. What is rendered must be covered by its runs, and a JSON value must survive being written and read.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "text/chat_encoding.h"
#include "text/chat_request.h"
#include "text/dsml.h"
#include "text/json.h"

namespace {

using tidepool::ChatPrompt;
using tidepool::Json;

void check_prompt(const ChatPrompt& prompt) {
  size_t end = 0;
  size_t image_count = 0;
  bool was_plain = false;
  for (const tidepool::PromptRun& run : prompt.runs) {
    TIDEPOOL_CHECK(run.begin == end && run.bytes > 0, "runs must cover the text");
    TIDEPOOL_CHECK(run.is_control_token || !was_plain, "plain runs must not touch");
    was_plain = !run.is_control_token;
    end += run.bytes;
    const std::string_view text = std::string_view(prompt.text).substr(run.begin, run.bytes);
    image_count += run.is_control_token && text == tidepool::dsml::kImage ? 1 : 0;
  }
  TIDEPOOL_CHECK(end == prompt.text.size(), "runs must cover the text");
  TIDEPOOL_CHECK(image_count == prompt.images.size(), "one record per placeholder");
}

void check_request(const Json& body) {
  try {
    check_prompt(tidepool::encode_chat_request(tidepool::parse_chat_request(body)).prompt);
  } catch (const tidepool::Error& error) {
    TIDEPOOL_CHECK(error.code() == tidepool::ErrorCode::kInvalidArgument, error.what());
  }
}

void check_messages(const Json& body) {
  const Json* messages = body.find("messages");
  if (messages == nullptr) return;
  try {
    tidepool::ChatEncodingOptions options;
    options.mode = body.find("thinking") == nullptr ? tidepool::ThinkingMode::kChat : tidepool::ThinkingMode::kThinking;
    check_prompt(tidepool::encode_chat(tidepool::parse_chat_messages(*messages), options));
  } catch (const tidepool::Error& error) {
    TIDEPOOL_CHECK(error.code() == tidepool::ErrorCode::kInvalidArgument, error.what());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Json body;
  try {
    body = tidepool::parse_json(text, {.allows_nonfinite = true});
  } catch (const tidepool::Error&) {
    return 0;
  }
  const std::string written = tidepool::write_json(body);
  const Json again = tidepool::parse_json(written, {.allows_nonfinite = true});
  TIDEPOOL_CHECK(tidepool::write_json(again) == written, "a written value must read as itself");
  check_request(body);
  check_messages(body);
  return 0;
}
