// What the writers make of outputs that a model seldom writes: cut short, or not as it should.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/anthropic_writers.h"
#include "server/chat_writers.h"
#include "server/metrics.h"
#include "server/responses_writer.h"

namespace tidepool {
namespace {

using Kind = CompletionEvent::Kind;

AnswerInfo info() {
  AnswerInfo result;
  result.id = "1";
  result.model = "m";
  result.decode = [](std::span<const int32_t> ids) { return std::string(ids.size(), 'x'); };
  return result;
}

CompletionEvent event(Kind kind, std::string text, size_t call = 0) {
  CompletionEvent result;
  result.kind = kind;
  result.text = text;
  result.name = std::move(text);
  result.call_index = call;
  return result;
}

ServiceFinish finish(FinishReason reason, bool has_calls = false) {
  ServiceFinish result;
  result.reason = reason;
  result.has_calls = has_calls;
  return result;
}

/// All that a writer writes of one output.
std::string write(AnswerWriter& writer, const std::vector<CompletionEvent>& events, const ServiceFinish& end) {
  std::string out;
  writer.start({}, out);
  for (const CompletionEvent& one : events)
    writer.output(0, {}, std::span(&one, 1), out);
  writer.finish(0, end, out);
  writer.end(out);
  return out;
}

const std::vector<CompletionEvent>& cut_call() {
  static const std::vector<CompletionEvent> events = {event(Kind::kToolCallStart, "patch"),
                                                      event(Kind::kArguments, R"({"input": )"),
                                                      event(Kind::kArguments, "\"a\\n")};
  return events;
}

TEST(Writers, ACallThatIsCutShortEndsWithLength) {
  const auto writer = chat::make_writer(info(), {});
  const Json answer = parse_json(write(*writer, cut_call(), finish(FinishReason::kMaxTokens)));
  const Json& choice = answer.find("choices")->as_array().front();
  EXPECT_EQ(choice.find("finish_reason")->as_string(), "length");
  EXPECT_TRUE(choice.find("message")->find("content")->is_null());
}

TEST(Writers, CallsAreTheReasonOnlyWhenTheModelEndedByItself) {
  EXPECT_EQ(openai_finish_reason(finish(FinishReason::kStopToken, true)), "tool_calls");
  EXPECT_EQ(openai_finish_reason(finish(FinishReason::kMaxTokens, true)), "length");
  EXPECT_EQ(openai_finish_reason(finish(FinishReason::kContextFull)), "length");
  EXPECT_EQ(openai_finish_reason(finish(FinishReason::kCancelled)), "aborted");
  ServiceFinish stopped = finish(FinishReason::kStopText, true);
  EXPECT_EQ(openai_finish_reason(stopped), "tool_calls") << "one call was enough";
  stopped.stop_index = 0;
  EXPECT_EQ(openai_finish_reason(stopped), "stop");
}

TEST(Writers, AMessageSaysAnEmptyObjectForArgumentsThatDoNotParse) {
  const auto writer = messages::make_writer(info(), {});
  const Json message = parse_json(write(*writer, cut_call(), finish(FinishReason::kMaxTokens)));
  EXPECT_EQ(write_json(*message.find("content")->as_array().front().find("input")), "{}");
  EXPECT_EQ(message.find("stop_reason")->as_string(), "max_tokens");
}

TEST(Writers, ACustomToolGetsItsTextAsFarAsItCame) {
  responses::WriterOptions options;
  options.custom_tools = {"patch"};
  const auto writer = responses::make_writer(info(), options);
  const Json response = parse_json(write(*writer, cut_call(), finish(FinishReason::kMaxTokens)));
  const Json& item = response.find("output")->as_array().front();
  EXPECT_EQ(item.find("input")->as_string(), "a\n");
  EXPECT_EQ(item.find("status")->as_string(), "incomplete");
  const auto odd = responses::make_writer(info(), options);
  const Json other = parse_json(write(
      *odd,
      {event(Kind::kToolCallStart, "patch"), event(Kind::kArguments, R"({"file": 1})"), event(Kind::kToolCallEnd, "")},
      finish(FinishReason::kStopToken, true)));
  EXPECT_EQ(other.find("output")->as_array().front().find("input")->as_string(), R"({"file": 1})");
}

TEST(Writers, EventsOfAMessageOpenOneBlockAtATime) {
  messages::WriterOptions options;
  options.is_stream = true;
  const auto writer = messages::make_writer(info(), options);
  const std::string out = write(*writer,
                                {event(Kind::kReasoning, "t"), event(Kind::kContent, "c"),
                                 event(Kind::kToolCallStart, "f"), event(Kind::kToolCallEnd, "")},
                                finish(FinishReason::kStopToken, true));
  std::vector<std::string> names;
  for (size_t at = out.find("event: "); at != std::string::npos; at = out.find("event: ", at + 1))
    names.push_back(out.substr(at + 7, out.find('\n', at) - at - 7));
  EXPECT_THAT(names, testing::ElementsAre("message_start", "content_block_start", "ping", "content_block_delta",
                                          "content_block_delta", "content_block_stop", "content_block_start",
                                          "content_block_delta", "content_block_stop", "content_block_start",
                                          "content_block_stop", "message_delta", "message_stop"));
  EXPECT_LT(out.find("signature_delta"), out.find("content_block_stop"));
}

TEST(Writers, TextOfAModelCannotBreakAnEvent) {
  chat::WriterOptions options;
  options.stream.is_stream = true;
  const auto writer = chat::make_writer(info(), options);
  const std::string out =
      write(*writer, {event(Kind::kContent, "a\n\ndata: [DONE]\n\n\r\x01\"\\")}, finish(FinishReason::kStopToken));
  const std::string end = "\ndata: [DONE]\n\n";
  EXPECT_EQ(out.find("\ndata: [DONE]\n"), out.size() - end.size()) << "the text's own is within a JSON string";
}

TEST(Histogram, CountsBelowEachBound) {
  Histogram histogram({1, 2.5, 10});
  for (const double value : {0.5, 1.0, 2.0, 11.0})
    histogram.observe(value);
  histogram.observe(3, 2);
  std::string out;
  histogram.write(out, "h", "a=\"b\"");
  EXPECT_EQ(out,
            "h_bucket{a=\"b\",le=\"1\"} 2\nh_bucket{a=\"b\",le=\"2.5\"} 3\nh_bucket{a=\"b\",le=\"10\"} 5\n"
            "h_bucket{a=\"b\",le=\"+Inf\"} 6\nh_sum{a=\"b\"} 20.5\nh_count{a=\"b\"} 6\n");
}

}  // namespace
}  // namespace tidepool
