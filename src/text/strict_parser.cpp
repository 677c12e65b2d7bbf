#include "text/strict_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "text/dsml.h"
#include "text/json.h"

namespace tidepool {

namespace {

constexpr std::string_view kCallsStart = "\n\n<｜DSML｜ calls";
constexpr std::string_view kInvokeStart = "<｜DSML｜ invoke";
constexpr std::string_view kInvokeEnd = "</｜DSML｜ invoke";
constexpr std::string_view kParameterStart = "<｜DSML｜ parameter";
/// Without the '<' before it, which must be the last character of what precedes.
constexpr std::string_view kParameterEnd = "/｜DSML｜ parameter";

class StrictParser {
 public:
  explicit StrictParser(std::string_view text) : text_(text) {}

  ParsedMessage parse(ThinkingMode mode) {
    ParsedMessage message;
    if (mode == ThinkingMode::kThinking) {
      const Stretch reasoning = read_until({dsml::kThinkEnd, kCallsStart});
      if (reasoning.stop != dsml::kThinkEnd) fail("the reasoning is not closed by </think>");
      message.reasoning = reasoning.text;
    }
    const Stretch content = read_until({dsml::kEndOfSentence, kCallsStart});
    message.content = content.text;
    if (content.stop == kCallsStart) {
      message.tool_calls = parse_calls();
      if (rest() == dsml::kEndOfSentence) position_ = text_.size();
    } else if (content.stop.empty()) {
      fail("the text ends without the end-of-sentence token");
    }
    if (position_ != text_.size()) fail("text after the end of the message");
    refuse_control_tokens(message.reasoning);
    refuse_control_tokens(message.content);
    return message;
  }

 private:
  struct Stretch {
    std::string_view text;
    /// What ended it; empty when the input did.
    std::string_view stop;
  };

  [[noreturn]] void fail(std::string_view what) const {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("completion, byte {}: {}", position_, what));
  }

  [[nodiscard]] std::string_view rest() const { return text_.substr(position_); }

  /// Takes the text up to the first of two stops, and that stop.
  Stretch read_until(const std::array<std::string_view, 2>& stops) {
    const std::string_view from = rest();
    size_t at = std::string_view::npos;
    std::string_view stop;
    for (const std::string_view candidate : stops) {
      const size_t found = from.find(candidate);
      if (found < at) {
        at = found;
        stop = candidate;
      }
    }
    const std::string_view text = from.substr(0, at);
    position_ += text.size() + stop.size();
    return {text, stop};
  }

  std::vector<ParsedCall> parse_calls() {
    std::vector<ParsedCall> calls;
    while (true) {
      const Stretch gap = read_until({kInvokeStart, dsml::kCallsEnd});
      if (gap.stop.empty()) fail("the calls block is not closed");
      if (gap.text != ">\n") fail("expected \">\" and a newline between tags");
      if (gap.stop == dsml::kCallsEnd) return calls;
      calls.push_back(parse_call());
    }
  }

  ParsedCall parse_call() {
    Stretch head = read_until({kParameterStart, kInvokeEnd});
    if (head.stop.empty()) fail("a call is not closed");
    ToolName name = parse_name(head.text);
    std::vector<std::string> keys;
    std::string arguments = "{";
    std::string_view stop = head.stop;
    while (stop == kParameterStart) {
      if (!keys.empty()) arguments += ", ";
      parse_parameter(arguments, keys);
      const Stretch gap = read_until({kParameterStart, kInvokeEnd});
      if (gap.stop.empty()) fail("a call is not closed");
      if (gap.text != ">\n") fail("expected \">\" and a newline after a parameter");
      stop = gap.stop;
    }
    return {std::move(name.space), std::move(name.name), arguments + "}"};
  }

  /// From `  name="NAME">` and a newline or two.
  [[nodiscard]] ToolName parse_name(std::string_view head) const {
    constexpr std::string_view kHead = "name=\"";
    constexpr std::string_view kTail = "\">\n";
    const size_t begin = head.find_first_not_of(" \t\n\r\f\v");
    head.remove_prefix(std::min(begin, head.size()));
    if (head.ends_with("\n\n")) head.remove_suffix(1);
    if (!head.starts_with(kHead) || !head.ends_with(kTail) || head.size() < kHead.size() + kTail.size()) {
      fail("expected name=\"...\"> after the invoke tag");
    }
    head.remove_prefix(kHead.size());
    head.remove_suffix(kTail.size());
    try {
      return split_tool_name(head);
    } catch (const Error& error) {
      fail(error.what());
    }
  }

  /// From ` name="KEY" string="true">VALUE<` with the shortest KEY that fits.
  void parse_parameter(std::string& arguments, std::vector<std::string>& keys) {
    constexpr std::string_view kHead = " name=\"";
    constexpr std::string_view kStringTail = "\" string=\"true\">";
    constexpr std::string_view kJsonTail = "\" string=\"false\">";
    const Stretch parameter = read_until({kParameterEnd, kParameterEnd});
    if (parameter.stop.empty()) fail("a parameter is not closed");
    std::string_view text = parameter.text;
    if (!text.starts_with(kHead) || !text.ends_with('<')) fail("expected name=\"...\" after the parameter tag");
    text.remove_prefix(kHead.size());
    text.remove_suffix(1);
    const size_t string_at = text.find(kStringTail);
    const size_t json_at = text.find(kJsonTail);
    const size_t key_end = std::min(string_at, json_at);
    if (key_end == std::string_view::npos) fail("expected string=\"true\" or string=\"false\" in the parameter tag");
    const bool is_string = string_at < json_at;
    std::string key(text.substr(0, key_end));
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) fail(fmt::format("parameter \"{}\" is repeated", key));
    text.remove_prefix(key_end + (is_string ? kStringTail : kJsonTail).size());
    arguments += '"';
    append_json_escaped(arguments, key);
    arguments += is_string ? "\": \"" : "\": ";
    if (is_string) {
      append_json_escaped(arguments, text);
      arguments += '"';
    } else {
      arguments += text;
    }
    keys.push_back(std::move(key));
  }

  void refuse_control_tokens(std::string_view text) const {
    for (const std::string_view token :
         {dsml::kBeginOfSentence, dsml::kEndOfSentence, dsml::kThinkBegin, dsml::kThinkEnd, dsml::kMark}) {
      if (text.find(token) != std::string_view::npos) fail(fmt::format("{} inside the text of the message", token));
    }
  }

  std::string_view text_;
  size_t position_ = 0;
};

}  // namespace

ParsedMessage parse_completion_strictly(std::string_view completion, ThinkingMode mode) {
  return StrictParser(completion).parse(mode);
}

}  // namespace tidepool
