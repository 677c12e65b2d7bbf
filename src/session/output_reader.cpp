#include "session/output_reader.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/check.h"
#include "text/dsml.h"

namespace tidepool {
namespace {

/// Two events into one list.
void append(std::vector<CompletionEvent>& events, std::vector<CompletionEvent> more) {
  for (CompletionEvent& event : more)
    events.push_back(std::move(event));
}

std::vector<CompletionEvent> content(std::string text) {
  std::vector<CompletionEvent> events;
  if (text.empty()) return events;
  events.emplace_back();
  events.back().text = std::move(text);
  return events;
}

}  // namespace

OutputReader::OutputReader(const Tokenizer* tokenizer, const OutputFormat& format) : tokenizer_(tokenizer) {
  if (format.kind == OutputFormat::Kind::kIds) return;
  TIDEPOOL_CHECK(tokenizer != nullptr, "text needs a tokenizer");
  detokenizer_.emplace(*tokenizer);
  if (format.kind == OutputFormat::Kind::kRaw) {
    parser_.emplace<StopFinder>(format.stops);
    shows_special_ = format.shows_special_tokens;
    return;
  }
  parser_.emplace<CompletionParser>(CompletionParserOptions{format.start, format.has_tools, format.stops});
  for (const std::string_view marker : {dsml::kThinkEnd, dsml::kMark}) {
    if (const std::optional<int32_t> id = tokenizer->find_added_token(marker)) markers_.push_back(*id);
  }
}

bool OutputReader::is_hidden(int32_t id) const {
  return !shows_special_ && tokenizer_->is_special(id) && std::ranges::find(markers_, id) == markers_.end();
}

std::vector<CompletionEvent> OutputReader::feed(int32_t id) {
  if (!detokenizer_ || is_hidden(id)) return {};
  return read(detokenizer_->push(id));
}

std::vector<CompletionEvent> OutputReader::read(const std::string& text) {
  std::vector<CompletionEvent> events;
  if (auto* parser = std::get_if<CompletionParser>(&parser_)) {
    events = parser->feed(text);
    note_stop(events);
  } else if (auto* finder = std::get_if<StopFinder>(&parser_)) {
    events = content(finder->feed(text));
    stop_index_ = finder->met();
  }
  return events;
}

std::vector<CompletionEvent> OutputReader::finish() {
  if (!detokenizer_) return {};
  std::vector<CompletionEvent> events = read(detokenizer_->flush());
  if (auto* parser = std::get_if<CompletionParser>(&parser_)) {
    append(events, parser->finish());
  } else if (auto* finder = std::get_if<StopFinder>(&parser_)) {
    append(events, content(finder->finish()));
  }
  return events;
}

void OutputReader::note_stop(const std::vector<CompletionEvent>& events) {
  for (const CompletionEvent& event : events) {
    if (event.kind == CompletionEvent::Kind::kStop) stop_index_ = event.stop_index;
  }
}

bool OutputReader::is_done() const {
  if (const auto* parser = std::get_if<CompletionParser>(&parser_)) return parser->is_done();
  return stop_index_.has_value();
}

bool OutputReader::is_reasoning() const {
  const auto* parser = std::get_if<CompletionParser>(&parser_);
  return parser != nullptr && parser->is_reasoning();
}

}  // namespace tidepool
