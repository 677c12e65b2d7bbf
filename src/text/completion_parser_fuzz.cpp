// Any generated text in any pieces: the pieces give what the whole text gives, from every starting state. Input: one
// byte of options, one byte that seeds the cuts, a stop sequence up to a zero byte, the text. The strict parser reads
// the same text or refuses it with an Error.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "text/completion_parser.h"
#include "text/strict_parser.h"

namespace {

using tidepool::Completion;
using tidepool::CompletionParser;
using tidepool::CompletionParserOptions;
using tidepool::OutputStart;

Completion parse_cut(std::string_view text, const CompletionParserOptions& options, uint8_t seed) {
  std::minstd_rand random(seed + 1U);
  const size_t longest = 1 + random() % 12;
  CompletionParser parser(options);
  Completion completion;
  while (!text.empty()) {
    const std::string_view piece = text.substr(0, 1 + random() % longest);
    completion.add(parser.feed(piece));
    text.remove_prefix(piece.size());
  }
  completion.add(parser.finish());
  return completion;
}

void check_same(const Completion& a, const Completion& b) {
  TIDEPOOL_CHECK(a.reasoning == b.reasoning, "other reasoning");
  TIDEPOOL_CHECK(a.content == b.content, "other content");
  TIDEPOOL_CHECK(a.has_hit_stop == b.has_hit_stop, "other end");
  TIDEPOOL_CHECK(a.calls.size() == b.calls.size(), "other calls");
  for (size_t i = 0; i < a.calls.size(); ++i) {
    TIDEPOOL_CHECK(a.calls[i].name == b.calls[i].name, "other name");
    TIDEPOOL_CHECK(a.calls[i].arguments == b.calls[i].arguments, "other arguments");
    TIDEPOOL_CHECK(a.calls[i].is_complete == b.calls[i].is_complete, "other completeness");
  }
}

void check_strict(std::string_view text, tidepool::ThinkingMode mode) {
  try {
    (void)tidepool::parse_completion_strictly(text, mode);
  } catch (const tidepool::Error& error) {
    TIDEPOOL_CHECK(error.code() == tidepool::ErrorCode::kInvalidArgument, error.what());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const uint8_t flags = data[0];
  const uint8_t seed = data[1];
  std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const std::string_view stop = text.substr(0, text.find('\0'));
  text.remove_prefix(std::min(text.size(), stop.size() + 1));

  constexpr std::array<OutputStart, 4> kStarts = {OutputStart::kReasoning, OutputStart::kContent,
                                                  OutputStart::kContinuation, OutputStart::kCalls};
  CompletionParserOptions options;
  options.start = kStarts[flags % kStarts.size()];
  options.has_tools = (flags & 4U) != 0;
  if (!stop.empty()) options.stops = {std::string(stop), "STOP"};
  check_same(tidepool::parse_completion(text, options), parse_cut(text, options, seed));
  check_strict(text, tidepool::ThinkingMode::kChat);
  check_strict(text, tidepool::ThinkingMode::kThinking);
  return 0;
}
