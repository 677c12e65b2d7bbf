#include "text/completion_parser.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "text/completion_parser_match.h"
#include "text/dsml.h"
#include "text/json.h"

namespace tidepool {

namespace {

constexpr std::string_view kInvokeHead = "invoke name=\"";
constexpr std::string_view kParameterHead = "parameter name=";

/// Inside a value: its end, or what follows it when its closing tag is missing. A newline before any of these may be
/// layout, so each comes with and without one; the longer match wins.
std::vector<std::string> value_patterns() {
  std::vector<std::string> patterns = {std::string(dsml::kClose)};
  for (const std::string_view space : {" ", ""}) {
    for (const std::string_view head : {kParameterHead, kInvokeHead}) {
      patterns.push_back(std::string(dsml::kOpen).append(space).append(head));
    }
  }
  for (size_t i = 0, count = patterns.size(); i < count; ++i)
    patterns.push_back(std::string(1, '\n').append(patterns[i]));
  return patterns;
}

/// What can follow the closing mark after a value.
struct CloserTail {
  std::string_view text;
  enum class Meaning { kParameter, kInvoke, kCalls } meaning;
};
constexpr std::array<CloserTail, 6> kCloserTails = {{
    {" parameter", CloserTail::Meaning::kParameter},
    {"parameter", CloserTail::Meaning::kParameter},
    {" invoke", CloserTail::Meaning::kInvoke},
    {"invoke", CloserTail::Meaning::kInvoke},
    {" calls>", CloserTail::Meaning::kCalls},
    {"tool_calls>", CloserTail::Meaning::kCalls},
}};

}  // namespace

/// Reads one byte at a time. Each state has one function that takes a byte and one line in flush().
class CompletionParser::Automaton {
 public:
  explicit Automaton(CompletionParserOptions options)
      : has_tools_(options.has_tools),
        stops_(std::move(options.stops)),
        seeker_({std::string(kInvokeHead), std::string(dsml::kCallsEnd), std::string(dsml::kCallsEndV4)}),
        tag_seeker_({std::string(kParameterHead), std::string(kInvokeHead), std::string(dsml::kClose)}),
        kind_seeker_({"true\">", "false\">", std::string(dsml::kClose)}),
        value_seeker_(value_patterns()) {
    switch (options.start) {
      case OutputStart::kReasoning: state_ = State::kReasoning; break;
      case OutputStart::kContent: state_ = State::kAnswer; break;
      case OutputStart::kContinuation:
        state_ = State::kAnswer;
        trims_newlines_ = false;
        break;
      case OutputStart::kCalls: state_ = State::kBetweenCalls; break;
    }
  }

  std::vector<CompletionEvent> feed(std::string_view piece) {
    for (const char byte : piece) {
      if (state_ == State::kDone) break;
      read(byte);
    }
    return std::exchange(events_, {});
  }

  std::vector<CompletionEvent> finish() {
    flush();
    state_ = State::kDone;
    return std::exchange(events_, {});
  }

  [[nodiscard]] bool is_done() const { return state_ == State::kDone; }
  [[nodiscard]] bool is_reasoning() const { return state_ == State::kReasoning; }

 private:
  using Kind = CompletionEvent::Kind;

  enum class State {
    kReasoning,
    kAnswer,
    kBetweenCalls,  ///< in the calls block, outside a call
    kName,          ///< in a call's name
    kInCall,        ///< in a call, outside a parameter
    kKey,           ///< in a parameter's key, quotes included
    kValueKind,     ///< between key and value
    kStringValue,   ///< in a value that is text
    kJsonValue,     ///< in a value that is JSON
    kAfterValue,    ///< behind the closing mark after a value
    kDone,
  };

  void read(char byte) {
    switch (state_) {
      case State::kReasoning:
      case State::kAnswer: read_text(byte); return;
      case State::kBetweenCalls: read_between_calls(byte); return;
      case State::kName: read_name(byte); return;
      case State::kInCall: read_in_call(byte); return;
      case State::kKey: read_key(byte); return;
      case State::kValueKind: read_value_kind(byte); return;
      case State::kStringValue:
      case State::kJsonValue: read_value(byte); return;
      case State::kAfterValue: read_after_value(byte); return;
      case State::kDone: return;
    }
  }

  /// Releases what is held back, at the end of the output.
  void flush() {
    switch (state_) {
      case State::kReasoning:
      case State::kAnswer:
        release_text();
        release_content();
        return;
      case State::kName:
        if (!name_.empty()) start_call();
        return;
      case State::kKey: emit_key(); return;
      case State::kStringValue:
      case State::kJsonValue: release_value(held_.size()); return;
      case State::kAfterValue: close_value(true); return;
      case State::kBetweenCalls:
      case State::kInCall:
      case State::kValueKind:
      case State::kDone: return;
    }
  }

  void emit(Kind kind, std::string_view text) {
    if (text.empty()) return;
    if (events_.empty() || events_.back().kind != kind) {
      events_.emplace_back();
      events_.back().kind = kind;
      events_.back().call_index = call_index_;
    }
    events_.back().text += text;
  }

  // --- reasoning and answer -------------------------------------------------------------------------------------

  /// Markers begin with '<' and have neither another one nor newlines in them, so a text that fails to become a marker
  /// holds no other beginning of one.
  void read_text(char byte) {
    if (!marker_.empty()) {
      marker_ += byte;
      if (extends_marker()) return;
      marker_.pop_back();
      release_text();
      if (state_ == State::kDone) return;
    }
    if (byte == '<') {
      marker_.assign(1, byte);
    } else if (byte == '\n') {
      if (!trims_newlines_) ++newlines_;
    } else {
      release_text();
      if (state_ != State::kDone) emit_text(std::string_view(&byte, 1));
    }
  }

  /// Whether marker_ is a marker or may become one; acts when it is complete.
  bool extends_marker() {
    if (marker_ == dsml::kThinkEnd) {
      end_reasoning();
      return true;
    }
    if (has_tools_ && (marker_ == dsml::kOpen || marker_ == dsml::kClose)) {
      begin_calls();
      return true;
    }
    return dsml::kThinkEnd.starts_with(marker_) ||
           (has_tools_ && (dsml::kOpen.starts_with(marker_) || dsml::kClose.starts_with(marker_)));
  }

  /// In the answer the marker is merely removed, and newlines around it count as one run.
  void end_reasoning() {
    marker_.clear();
    if (state_ == State::kAnswer) return;
    newlines_ = 0;
    trims_newlines_ = true;
    state_ = State::kAnswer;
  }

  /// A closing mark out of place begins the calls too: what follows it is debris of a calls block, not an answer.
  void begin_calls() {
    newlines_ = 0;
    release_content();
    seeker_.reset();
    if (marker_ == dsml::kClose) seeker_.prime(dsml::kClose);
    marker_.clear();
    state_ = State::kBetweenCalls;
  }

  /// Newlines and a marker's beginning were text after all.
  void release_text() {
    if (newlines_ > 0) emit_text(std::string(std::exchange(newlines_, 0), '\n'));
    if (!marker_.empty()) emit_text(std::exchange(marker_, {}));
  }

  void emit_text(std::string_view text) {
    trims_newlines_ = false;
    if (state_ == State::kReasoning) {
      emit(Kind::kReasoning, text);
    } else if (stops_.is_empty()) {
      emit(Kind::kContent, text);
    } else {
      for (const char byte : text) {
        if (state_ != State::kDone) read_content(byte);
      }
    }
  }

  void read_content(char byte) {
    held_ += byte;
    const std::optional<size_t> stop = stops_.feed(byte);
    if (!stop) {
      const size_t ready = held_.size() - stops_.held();
      emit(Kind::kContent, std::string_view(held_).substr(0, ready));
      held_.erase(0, ready);
      return;
    }
    held_.resize(held_.size() - stops_.pattern(*stop).size());
    release_content();
    events_.emplace_back();
    events_.back().kind = Kind::kStop;
    events_.back().stop_index = *stop;
    state_ = State::kDone;
  }

  void release_content() { emit(Kind::kContent, std::exchange(held_, {})); }

  // --- calls ------------------------------------------------------------------------------------------------------

  void read_between_calls(char byte) {
    const std::optional<size_t> found = seeker_.feed(byte);
    if (!found) return;
    if (*found == 0) {
      begin_name();
    } else {
      state_ = State::kDone;
    }
  }

  void begin_name() {
    name_.clear();
    state_ = State::kName;
  }

  void read_name(char byte) {
    if (byte != '"') {
      name_ += byte;
      return;
    }
    start_call();
    begin_in_call();
  }

  void start_call() {
    events_.emplace_back();
    CompletionEvent& event = events_.back();
    event.kind = Kind::kToolCallStart;
    event.call_index = call_index_;
    event.text = name_;
    event.name = name_;
    const size_t separator = name_.find("::");
    if (separator != std::string::npos && name_.find("::", separator + 2) == std::string::npos) {
      event.space = name_.substr(0, separator);
      event.name = name_.substr(separator + 2);
    }
    parameter_count_ = 0;
  }

  void begin_in_call() {
    tag_seeker_.reset();
    state_ = State::kInCall;
  }

  void read_in_call(char byte) {
    const std::optional<size_t> found = tag_seeker_.feed(byte);
    if (!found) return;
    if (*found == 0) {
      begin_key();
      return;
    }
    end_call();
    if (*found == 1) {
      begin_name();
      return;
    }
    seeker_.reset();
    seeker_.prime(dsml::kClose);
    state_ = State::kBetweenCalls;
  }

  void end_call() {
    emit(Kind::kArguments, parameter_count_ == 0 ? "{}" : "}");
    events_.emplace_back();
    events_.back().kind = Kind::kToolCallEnd;
    events_.back().call_index = call_index_;
    ++call_index_;
  }

  void begin_key() {
    emit(Kind::kArguments, parameter_count_ == 0 ? "{" : ", ");
    ++parameter_count_;
    key_.clear();
    state_ = State::kKey;
  }

  /// The key ends at a space or '>' behind its closing quote; a key without quotes at any. A '>' means that the tag
  /// says nothing about the kind of value, which is then taken for text.
  void read_key(char byte) {
    const bool is_quoted = key_.starts_with('"');
    const bool is_closed = !is_quoted || (key_.size() >= 2 && key_.ends_with('"'));
    if (!is_closed || (byte != ' ' && byte != '>')) {
      key_ += byte;
      return;
    }
    emit_key();
    emit(Kind::kArguments, "\": ");
    kind_seeker_.reset();
    if (byte == ' ') {
      state_ = State::kValueKind;
    } else {
      begin_value(State::kStringValue);
    }
  }

  /// The key without its closing quote.
  void emit_key() {
    if (key_.empty()) return;
    std::string_view text = key_;
    if (text.starts_with('"')) {
      text.remove_prefix(1);
      if (text.ends_with('"')) text.remove_suffix(1);
    }
    std::string escaped = "\"";
    append_json_escaped(escaped, text);
    emit(Kind::kArguments, escaped);
  }

  void read_value_kind(char byte) {
    const std::optional<size_t> found = kind_seeker_.feed(byte);
    if (!found) return;
    if (*found == 2) {
      emit(Kind::kArguments, "null");  // the tag was closed before any value
      begin_in_call();
    } else {
      begin_value(*found == 0 ? State::kStringValue : State::kJsonValue);
    }
  }

  void begin_value(State kind) {
    state_ = kind;
    value_state_ = kind;
    if (kind == State::kStringValue) emit(Kind::kArguments, "\"");
    value_seeker_.reset();
  }

  void read_value(char byte) {
    held_ += byte;
    const std::optional<size_t> found = value_seeker_.feed(byte);
    if (!found) {
      release_value(held_.size() - value_seeker_.held());
      return;
    }
    const std::string_view end = value_seeker_.pattern(*found);
    release_value(held_.size() - end.size());
    held_.clear();
    has_value_newline_ = end.starts_with('\n');
    if (end.ends_with(dsml::kClose)) {
      closer_tail_.clear();
      state_ = State::kAfterValue;
      return;
    }
    close_value(false);
    if (end.ends_with(kParameterHead)) {
      begin_key();
    } else {
      end_call();
      begin_name();
    }
  }

  void release_value(size_t bytes) {
    const std::string_view text = std::string_view(held_).substr(0, bytes);
    if (value_state_ == State::kStringValue) {
      std::string escaped;
      append_json_escaped(escaped, text);
      emit(Kind::kArguments, escaped);
    } else {
      emit(Kind::kArguments, text);
    }
    held_.erase(0, bytes);
  }

  /// `keeps_newline`: a newline right before the closing tag belongs to the value. It does not when the value's own
  /// closing tag is missing.
  void close_value(bool keeps_newline) {
    if (keeps_newline && has_value_newline_) {
      emit(Kind::kArguments, value_state_ == State::kStringValue ? "\\n" : "\n");
    }
    if (value_state_ == State::kStringValue) emit(Kind::kArguments, "\"");
    begin_in_call();
  }

  /// Whether the mark closes the parameter, as it should, or the call or block around it.
  void read_after_value(char byte) {
    closer_tail_ += byte;
    bool may_go_on = false;
    for (const CloserTail& tail : kCloserTails) {
      if (closer_tail_ == tail.text && tail.meaning != CloserTail::Meaning::kParameter) {
        close_value(false);
        end_call();
        seeker_.reset();
        seeker_.prime(closer_tail_);
        state_ = tail.meaning == CloserTail::Meaning::kCalls ? State::kDone : State::kBetweenCalls;
        return;
      }
      may_go_on = may_go_on || (tail.text.starts_with(closer_tail_) && tail.text != closer_tail_);
    }
    if (may_go_on) return;
    close_value(true);
    for (const char again : std::exchange(closer_tail_, {}))
      read(again);
  }

  State state_ = State::kAnswer;
  bool has_tools_;
  std::vector<CompletionEvent> events_;

  /// Newlines are dropped until the first other byte.
  bool trims_newlines_ = true;
  /// Newlines seen and not yet told of: dropped if a marker follows.
  size_t newlines_ = 0;
  /// The beginning of a marker.
  std::string marker_;
  StreamMatcher stops_;
  /// Content that may become a stop sequence, or value bytes that may become a tag.
  std::string held_;

  size_t call_index_ = 0;
  size_t parameter_count_ = 0;
  std::string name_;
  std::string key_;
  State value_state_ = State::kStringValue;
  bool has_value_newline_ = false;
  std::string closer_tail_;
  StreamMatcher seeker_;
  StreamMatcher tag_seeker_;
  StreamMatcher kind_seeker_;
  StreamMatcher value_seeker_;
};

std::string_view output_start_name(OutputStart start) {
  switch (start) {
    case OutputStart::kReasoning: return "reasoning";
    case OutputStart::kContent:
    case OutputStart::kContinuation: return "content";
    case OutputStart::kCalls: return "calls";
  }
  return "content";
}

CompletionParser::CompletionParser(CompletionParserOptions options) {
  for (const std::string& stop : options.stops) {
    if (stop.empty()) throw Error(ErrorCode::kInvalidArgument, "stop: a stop sequence is empty");
  }
  automaton_ = std::make_unique<Automaton>(std::move(options));
}

CompletionParser::CompletionParser(CompletionParser&&) noexcept = default;
CompletionParser& CompletionParser::operator=(CompletionParser&&) noexcept = default;
CompletionParser::~CompletionParser() = default;

std::vector<CompletionEvent> CompletionParser::feed(std::string_view piece) {
  return automaton_->feed(piece);
}
std::vector<CompletionEvent> CompletionParser::finish() {
  return automaton_->finish();
}
bool CompletionParser::is_done() const {
  return automaton_->is_done();
}
bool CompletionParser::is_reasoning() const {
  return automaton_->is_reasoning();
}

void Completion::add(const std::vector<CompletionEvent>& events) {
  for (const CompletionEvent& event : events) {
    switch (event.kind) {
      case CompletionEvent::Kind::kReasoning: reasoning += event.text; break;
      case CompletionEvent::Kind::kContent: content += event.text; break;
      case CompletionEvent::Kind::kToolCallStart: calls.push_back({event.text, "", false}); break;
      case CompletionEvent::Kind::kArguments: calls.at(event.call_index).arguments += event.text; break;
      case CompletionEvent::Kind::kToolCallEnd: calls.at(event.call_index).is_complete = true; break;
      case CompletionEvent::Kind::kStop: has_hit_stop = true; break;
    }
  }
}

Completion parse_completion(std::string_view text, const CompletionParserOptions& options) {
  CompletionParser parser(options);
  Completion completion;
  completion.add(parser.feed(text));
  completion.add(parser.finish());
  return completion;
}

}  // namespace tidepool
