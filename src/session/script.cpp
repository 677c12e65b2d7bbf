#include "session/script.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "session/prompt_ids.h"
#include "text/chat_encoding.h"
#include "text/json.h"

namespace tidepool {
namespace {

/// Recorded outputs are texts; a file beyond this is something else.
constexpr uint64_t kScriptBytesMax = uint64_t{1} << 28;

[[noreturn]] void refuse(std::string_view what) {
  throw Error(ErrorCode::kInvalidArgument, std::string(what));
}

std::vector<int32_t> ids_of_text(const Json& text, const Tokenizer& tokenizer) {
  if (!text.is_string()) refuse(fmt::format("text is {}; it must be a string", text.kind_name()));
  ChatPrompt prompt;
  append_template(prompt, text.as_string());
  return encode_prompt(tokenizer, prompt).ids;
}

std::vector<int32_t> ids_of_list(const Json& list) {
  if (!list.is_array()) refuse(fmt::format("ids is {}; it must be a list of token ids", list.kind_name()));
  std::vector<int32_t> ids;
  for (const Json& item : list.as_array()) {
    const std::optional<int64_t> id = item.try_int64();
    if (!id || *id < 0 || *id > std::numeric_limits<int32_t>::max()) {
      refuse(fmt::format("ids holds {}; each must be a token id", write_json(item)));
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

std::string match_of(const Json& line) {
  const Json* match = line.find("match");
  if (match == nullptr) return {};
  if (!match->is_string() || match->as_string().empty()) refuse("match must be a nonempty string");
  return match->as_string();
}

bool repeats(const Json& line) {
  const Json* repeat = line.find("repeat");
  if (repeat == nullptr) return false;
  if (!repeat->is_bool()) refuse(fmt::format("repeat is {}; it must be true or false", repeat->kind_name()));
  return repeat->as_bool();
}

std::vector<int32_t> output_of(const Json& line, const Tokenizer& tokenizer, int32_t end_id) {
  if (!line.is_object()) refuse(fmt::format("a line is {}; it must be an object with text or ids", line.kind_name()));
  for (const JsonMember& member : line.as_object()) {
    if (member.key != "text" && member.key != "ids" && member.key != "match" && member.key != "repeat")
      refuse(fmt::format("\"{}\" is not known; use text, ids, match and repeat", member.key));
  }
  const Json* text = line.find("text");
  const Json* list = line.find("ids");
  if ((text == nullptr) == (list == nullptr)) refuse("give either text or ids");
  std::vector<int32_t> ids = text != nullptr ? ids_of_text(*text, tokenizer) : ids_of_list(*list);
  if (!repeats(line)) {
    ids.push_back(end_id);
  } else if (ids.empty()) {
    refuse("there is nothing to repeat");
  }
  return ids;
}

}  // namespace

std::unique_ptr<Script> Script::load(const std::filesystem::path& file, const Tokenizer& tokenizer, int32_t end_id) {
  return parse(read_file(file, kScriptBytesMax), file.string(), tokenizer, end_id);
}

std::unique_ptr<Script> Script::parse(std::string_view text, std::string name, const Tokenizer& tokenizer,
                                      int32_t end_id) {
  std::unique_ptr<Script> script(new Script(std::move(name)));
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with('#')) continue;
    try {
      const Json object = parse_json(line);
      std::vector<int32_t> ids = output_of(object, tokenizer, end_id);
      std::string match = match_of(object);
      std::vector<Line>& lines = match.empty() ? script->in_turn_ : script->matched_;
      lines.push_back({std::move(match), std::move(ids)});
    } catch (const Error& error) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("{}, line {}: {}", script->name_, number, error.what()));
    }
  }
  if (script->matched_.empty() && script->in_turn_.empty())
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: holds no output; give at least one line", script->name_));
  return script;
}

std::vector<int32_t> Script::next(std::string_view last_message) {
  for (const Line& line : matched_)
    if (last_message.find(line.match) != std::string_view::npos) return line.ids;
  if (in_turn_.empty()) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("{}: no line matches the last message, and every line has a match", name_));
  }
  return in_turn_[turn_.fetch_add(1, std::memory_order_relaxed) % in_turn_.size()].ids;
}

}  // namespace tidepool
