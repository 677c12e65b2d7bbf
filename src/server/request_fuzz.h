#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "server/request_fields.h"
#include "server/token_routes.h"

/// What the fuzz targets of request bodies share: any bytes are read, or refused with an Error that is the client's;
/// and whatever is read can be answered.
namespace tidepool::server_testing {

inline void check_whole_json(const std::string& text) {
  try {
    (void)parse_json(text);
  } catch (const Error& error) {
    TIDEPOOL_CHECK(false, error.what());
  }
}

/// Every event of a stream must be JSON.
inline void check_stream_json(const std::string& text) {
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = text.find('\n', begin);
    TIDEPOOL_CHECK(end != std::string::npos, "an event ends with its line");
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.starts_with("data: ") && line != "data: [DONE]") check_whole_json(line.substr(6));
  }
}

inline std::vector<CompletionEvent> sample_events() {
  using Kind = CompletionEvent::Kind;
  std::vector<CompletionEvent> events;
  for (const auto& [kind, text] : {std::pair(Kind::kReasoning, "think"), std::pair(Kind::kContent, "say \"\n"),
                                   std::pair(Kind::kToolCallStart, "get"), std::pair(Kind::kArguments, "{\"input\": "),
                                   std::pair(Kind::kArguments, "\"x\"}"), std::pair(Kind::kToolCallEnd, "")}) {
    CompletionEvent event;
    event.kind = kind;
    event.text = text;
    event.name = text;
    events.push_back(event);
  }
  return events;
}

inline void check_answer(ApiCall& call) {
  std::string out;
  AnswerWriter& writer = *call.writer;
  SampledToken token;
  token.logprobs = Logprobs{-0.5, 0, {{7, -0.5}}};
  const std::vector<CompletionEvent> events = sample_events();
  for (size_t prompt = 0; prompt < call.requests.size(); ++prompt) {
    PromptStart start;
    start.prompt = prompt;
    writer.start(start, out);
    for (size_t i = 0; i < call.requests[prompt].choice_count; ++i) {
      const size_t choice = prompt * call.requests[prompt].choice_count + i;
      writer.output(choice, std::span(&token, 1), events, out);
      writer.finish(choice, ServiceFinish(), out);
    }
  }
  writer.end(out);
  call.is_stream ? check_stream_json(out) : check_whole_json(out);
}

template <typename ReadCall>
void fuzz_request(const uint8_t* data, size_t size, const ReadCall& read_call) {
  ApiContext context;
  context.info.decode = [](std::span<const int32_t> ids) { return std::string(ids.size(), '\xff'); };
  try {
    const Json body = parse_request_json(std::string_view(reinterpret_cast<const char*>(data), size));
    ApiCall call = read_call(body, context);
    for (const ServiceRequest& request : call.requests) {
      if (const auto* chat = std::get_if<ChatRequest>(&request.prompt)) (void)encode_chat_request(*chat);
    }
    check_answer(call);
  } catch (const Error& error) {
    TIDEPOOL_CHECK(error.code() == ErrorCode::kInvalidArgument, error.what());
  }
}

}  // namespace tidepool::server_testing
