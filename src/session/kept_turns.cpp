#include "session/kept_turns.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "text/dsml.h"
#include "text/json.h"

namespace tidepool {
namespace {

/// Turns under one key: an agent may answer "Done." a thousand times, and only the latest are worth looking through.
constexpr size_t kTurnsPerKeyMax = 16;

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

/// A number's value: integers with all digits, as ids have many; 3.0 and 3e0 are 3.
std::string canonical_number(const Json& number) {
  if (number.kind() == Json::Kind::kInteger) return write_json(number);
  constexpr double kExactMax = 9007199254740992.0;  // 2^53: below it every integer is its own binary64
  const double value = number.as_double();
  if (std::trunc(value) == value && std::abs(value) < kExactMax)
    return write_json(Json::make_integer(static_cast<int64_t>(value)));
  return shortest_real(value);
}

void append_canonical(std::string& out, const Json& value) {
  switch (value.kind()) {
    case Json::Kind::kObject: {
      std::vector<const JsonMember*> members;
      members.reserve(value.as_object().size());
      for (const JsonMember& member : value.as_object())
        members.push_back(&member);
      std::ranges::sort(members, {}, &JsonMember::key);
      out += '{';
      for (const JsonMember* member : members) {
        append_json(out, Json::make_string(member->key));
        append_canonical(out += ':', member->value);
        out += ',';
      }
      out += '}';
      return;
    }
    case Json::Kind::kArray:
      out += '[';
      for (const Json& item : value.as_array()) {
        append_canonical(out, item);
        out += ',';
      }
      out += ']';
      return;
    case Json::Kind::kInteger:
    case Json::Kind::kReal: out += canonical_number(value); return;
    case Json::Kind::kNull:
    case Json::Kind::kBool:
    case Json::Kind::kString: append_json(out, value); return;
  }
}

/// Clients send arguments as an object, as its text, or as that text in quotes.
void append_arguments(std::string& out, Json value) {
  constexpr int kDecodesMax = 2;
  for (int i = 0; i < kDecodesMax && value.is_string(); ++i) {
    try {
      value = parse_json(value.as_string(), {.allows_nonfinite = true});
    } catch (const Error&) {
      break;  // text that is no JSON is compared as it is
    }
  }
  append_canonical(out, value);
}

void append_call(std::string& out, std::string_view name, Json arguments) {
  append_json(out += "\ncall ", Json::make_string(std::string(name)));
  append_arguments(out += ' ', std::move(arguments));
}

/// What of a kept turn may stand at the place that is asked for; nothing when none of it. Its reasoning may only where
/// it was written, or where the client shows that it knows it: the same answer may have been given to others.
std::optional<KeptTurns::Answer::Part> usable_part(const KeptTurn& turn, const KeptTurns::Question& question) {
  using Part = KeptTurns::Answer::Part;
  const std::string_view sent = trim(question.reasoning);
  const bool is_own =
      sent.empty() ? turn.prompt_fingerprint == question.prompt_fingerprint : sent == trim(turn.reasoning);
  if (question.has_reasoning && turn.has_reasoning && is_own) {
    if (!turn.is_cut) return Part::kWhole;
    if (turn.body) return Part::kReasoning;
    return std::nullopt;
  }
  if (turn.is_cut || !turn.body) return std::nullopt;
  return Part::kBody;
}

std::vector<int32_t> ids_of(const KeptTurn& turn, KeptTurns::Answer::Part part) {
  const auto body = turn.ids.begin() + static_cast<std::ptrdiff_t>(turn.body.value_or(0));
  switch (part) {
    case KeptTurns::Answer::Part::kWhole: return turn.ids;
    case KeptTurns::Answer::Part::kReasoning: return {turn.ids.begin(), body};
    case KeptTurns::Answer::Part::kBody: return {body, turn.ids.end()};
  }
  return {};
}

/// The salt's length comes first, so that no two pairs have one key.
std::string key_of(std::string_view salt, std::string_view turn_text) {
  std::string key = std::to_string(salt.size());
  key += ':';
  key += salt;
  key += turn_text;
  return key;
}

}  // namespace

void PromptFingerprint::add(std::span<const int32_t> ids) {
  for (const int32_t id : ids) {
    hash_ ^= static_cast<uint32_t>(id);
    hash_ *= 0x100000001b3;
  }
}

uint64_t prompt_fingerprint(std::span<const int32_t> ids) {
  PromptFingerprint fingerprint;
  fingerprint.add(ids);
  return fingerprint.value();
}

namespace {

/// Quoted, so that no content reads like a call.
std::string canonical_content(std::string_view content, bool has_calls) {
  content = trim(content);
  return content.empty() && !has_calls ? "" : write_json(Json::make_string(std::string(content)));
}

}  // namespace

std::string canonical_turn(const ChatMessage& message) {
  std::string content;
  std::string_view separator;
  for (const ContentBlock& block : message.content) {
    if (block.kind != ContentBlock::Kind::kText) continue;
    content += separator;
    content += block.text;
    separator = "\n\n";
  }
  std::string text = canonical_content(content, !message.tool_calls.empty());
  for (const ToolCall& call : message.tool_calls)
    append_call(text, qualify_tool_name(call.name, call.space), call.arguments);
  return text;
}

std::string canonical_turn(const Completion& completion) {
  std::string text = canonical_content(completion.content, !completion.calls.empty());
  for (const Completion::Call& call : completion.calls)
    append_call(text, call.name, Json::make_string(call.arguments));
  return text;
}

size_t KeptTurns::bytes_of(const Entry& entry) {
  constexpr size_t kNodeBytes = 256;  // list and map nodes, string and vector heads
  return kNodeBytes + 2 * entry.key.size() + entry.turn.reasoning.size() + entry.turn.ids.size() * sizeof(int32_t);
}

void KeptTurns::drop(Entries::iterator entry) {
  bytes_ -= bytes_of(*entry);
  const auto bucket = by_key_.find(entry->key);
  std::erase(bucket->second, entry);
  if (bucket->second.empty()) by_key_.erase(bucket);
  entries_.erase(entry);
}

void KeptTurns::keep(std::string_view salt, const std::string& turn_text, KeptTurn turn) {
  if (turn_text.empty()) return;
  Entry entry{key_of(salt, turn_text), std::move(turn)};
  const size_t bytes = bytes_of(entry);
  if (bytes > bytes_max_) return;
  const std::lock_guard lock(mutex_);
  if (const auto bucket = by_key_.find(entry.key); bucket != by_key_.end()) {
    const auto same = std::ranges::find_if(bucket->second, [&](const Entries::iterator& other) {
      return other->turn.ids == entry.turn.ids && other->turn.prompt_fingerprint == entry.turn.prompt_fingerprint;
    });
    if (same != bucket->second.end()) {
      drop(*same);
    } else if (bucket->second.size() >= kTurnsPerKeyMax) {
      drop(bucket->second.front());
    }
  }
  while (bytes_ + bytes > bytes_max_)
    drop(std::prev(entries_.end()));
  entries_.push_front(std::move(entry));
  by_key_[entries_.front().key].push_back(entries_.begin());
  bytes_ += bytes;
}

std::optional<KeptTurns::Answer> KeptTurns::find(const Question& question) {
  if (question.turn_text.empty()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const auto bucket = by_key_.find(key_of(question.salt, question.turn_text));
  if (bucket == by_key_.end()) return std::nullopt;
  std::optional<Entries::iterator> best;
  std::optional<Answer::Part> best_part;
  std::tuple<bool, bool, bool> best_rank;
  for (const Entries::iterator& entry : bucket->second) {  // oldest first
    const std::optional<Answer::Part> part = usable_part(entry->turn, question);
    if (!part) continue;
    const std::tuple rank(*part != Answer::Part::kBody, entry->turn.prompt_fingerprint == question.prompt_fingerprint,
                          trim(entry->turn.reasoning) == trim(question.reasoning));
    if (best && rank < best_rank) continue;
    best = entry;
    best_part = part;
    best_rank = rank;
  }
  if (!best) return std::nullopt;
  entries_.splice(entries_.begin(), entries_, *best);
  return Answer{*best_part, ids_of((*best)->turn, *best_part)};
}

KeptTurns::Stats KeptTurns::stats() const {
  const std::lock_guard lock(mutex_);
  return {entries_.size(), bytes_};
}

}  // namespace tidepool
