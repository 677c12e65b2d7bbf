#include "train/dialogue.h"

#include <algorithm>
#include <optional>
#include <span>

#include "base/check.h"
#include "base/error.h"
#include "image/decode.h"
#include "session/image_source.h"
#include "text/chat_encoding_ids.h"
#include "text/dsml.h"
#include "text/tokenizer_control.h"

namespace tidepool {
namespace {

/// Bytes of a text that are to be learnt.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;
};

/// The picture of a record in a rendered prompt.
std::shared_ptr<const PreparedImage> prepare_record(const SampleEncoding& encoding, const Json& record) {
  if (!encoding.images) {
    throw Error(ErrorCode::kInvalidArgument, "a dialogue has a picture, and the model's config no vision_config");
  }
  constexpr std::string_view kName = "picture";
  const std::string file = image_record_bytes(record, std::string(kName), ImageLimits{}.bytes_max);
  const RgbImage image = decode_image(std::as_bytes(std::span(file)), std::string(kName));
  return std::make_shared<const PreparedImage>(prepare_image(*encoding.images, image, std::string(kName)));
}

/// Appends a picture's span in the place of its placeholder `id`.
void append_picture(const SampleEncoding& encoding, const Json& record, int32_t id, Sample& sample) {
  sample.pictures.push_back({sample.ids.size(), prepare_record(encoding, record)});
  sample.ids.resize(sample.ids.size() + static_cast<size_t>(sample.pictures.back().image->plan.tokens()), id);
  sample.weights.resize(sample.ids.size(), 0);
}

/// Appends the tokens of a rendered text; those that begin in a range are to be learnt, so the ones before them get the
/// weight.
void append(const SampleEncoding& encoding, const ChatPrompt& prompt, std::span<const TextRange> learnt,
            Sample& sample) {
  const std::optional<int32_t> placeholder = find_control_tokens(encoding.tokenizer).image;
  size_t position = 0;
  size_t range = 0;
  size_t picture = 0;
  for (const int32_t id : prompt_ids(encoding.tokenizer, prompt)) {
    if (id == placeholder) {
      append_picture(encoding, prompt.images[picture++], id, sample);
      position += dsml::kImage.size();
      continue;
    }
    while (range < learnt.size() && learnt[range].end <= position)
      ++range;
    const bool is_learnt = range < learnt.size() && learnt[range].begin <= position;
    if (is_learnt) sample.weights.back() = 1;
    sample.ids.push_back(id);
    sample.weights.push_back(0);
    position += encoding.tokenizer.token_bytes(id).size();
  }
  TIDEPOOL_CHECK(position == prompt.text.size(), "tokens and text of a prompt differ");
}

ChatPrompt render_answer(const Dialogue& dialogue) {
  ChatEncodingOptions options;
  options.mode = dialogue.request.is_thinking ? ThinkingMode::kThinking : ThinkingMode::kChat;
  options.effort = dialogue.request.effort;
  options.context.push_back(text_message(ChatRole::kUser, ""));  // all that an answer takes from what is before it
  return encode_chat({dialogue.answer}, options);
}

/// The earlier turns as they were written, each with its end of sentence.
std::vector<TextRange> learnt_turns(const Dialogue& dialogue, const ChatPrompt& prompt) {
  std::vector<TextRange> ranges;
  ranges.reserve(prompt.turns.size());
  for (const PromptTurn& turn : prompt.turns) {
    if (dialogue.request.is_thinking && !turn.has_reasoning) continue;
    ranges.push_back({turn.begin, turn.end + dsml::kEndOfSentence.size()});
  }
  return ranges;
}

/// The conversation up to the answer.
Sample make_given(const SampleEncoding& encoding, const Dialogue& dialogue) {
  Sample sample;
  const ChatPrompt prompt = encode_chat_request(dialogue.request).prompt;
  append(encoding, prompt, learnt_turns(dialogue, prompt), sample);
  return sample;
}

std::string trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1));
}

std::string text_of(const ChatMessage& message) {
  std::string text;
  for (const ContentBlock& block : message.content)
    text += block.text;
  return text;
}

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/// The first option (--x), command of the program (tidepool x), command of the chat or path (/x), or key (Ctrl-X) that
/// a text has; empty: none.
std::string first_name(std::string_view text) {
  const auto run = [&](size_t begin, auto belongs) {
    size_t end = begin;
    while (end < text.size() && belongs(text[end]))
      ++end;
    return std::string(text.substr(begin, end - begin));
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = text.substr(i);
    const bool is_start = i == 0 || !is_name_character(text[i - 1]);
    if (!is_start) continue;
    if (rest.starts_with("--") && rest.size() > 2 && is_name_character(rest[2])) return run(i, is_name_character);
    if (text[i] == '/' && rest.size() > 1 && is_name_character(rest[1]) && (i == 0 || text[i - 1] != '/')) {
      return run(i, [](char c) { return is_name_character(c) || c == '/'; });
    }
    if (rest.starts_with("tidepool ")) return "tidepool " + run(i + 9, is_name_character);
    if (rest.starts_with("Ctrl-")) return run(i, is_name_character);
  }
  return {};
}

bool has_type(const Json& value, const Json& schema) {
  const Json* type = schema.find("type");
  const std::string name = type != nullptr && type->is_string() ? type->as_string() : "string";
  if (name == "integer") return value.kind() == Json::Kind::kInteger;
  if (name == "number") return value.kind() == Json::Kind::kInteger || value.kind() == Json::Kind::kReal;
  if (name == "boolean") return value.is_bool();
  if (name == "array") return value.is_array();
  if (!value.is_string()) return false;
  const Json* choices = schema.find("enum");
  return choices == nullptr || std::ranges::find(choices->as_array(), value) != choices->as_array().end();
}

/// Whether the arguments fit what the tool's definition says of them.
bool fits_schema(const Json& arguments, const Json& schema) {
  const Json* properties = schema.find("properties");
  if (!arguments.is_object() || properties == nullptr) return false;
  for (const auto& [key, value] : arguments.as_object()) {
    const Json* property = properties->find(key);
    if (property == nullptr || !has_type(value, *property)) return false;
  }
  const Json* required = schema.find("required");
  if (required == nullptr) return true;
  return std::ranges::all_of(required->as_array(),
                             [&](const Json& key) { return arguments.find(key.as_string()) != nullptr; });
}

std::optional<Json> try_parse(const std::string& text) {
  try {
    return parse_json(text);
  } catch (const Error&) {
    return std::nullopt;  // a model may write anything
  }
}

bool is_well_formed(const Dialogue& dialogue, const Completion::Call& call) {
  const auto tool = std::ranges::find(dialogue.request.tools, call.name, &ToolDefinition::name);
  const std::optional<Json> arguments = try_parse(call.arguments);
  return call.is_complete && tool != dialogue.request.tools.end() && arguments &&
         fits_schema(*arguments, tool->parameters);
}

/// Members in any order.
bool are_same(const Json& a, const Json& b) {
  if (!a.is_object() || !b.is_object()) return a == b;
  return a.as_object().size() == b.as_object().size() &&
         std::ranges::all_of(a.as_object(), [&](const JsonMember& member) {
           const Json* other = b.find(member.key);
           return other != nullptr && *other == member.value;
         });
}

bool has_right_calls(const Dialogue& dialogue, const Completion& output) {
  const std::vector<ToolCall>& wanted = dialogue.answer.tool_calls;
  if (wanted.size() != output.calls.size() || trimmed(output.content) != trimmed(text_of(dialogue.answer)))
    return false;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const std::optional<Json> arguments = try_parse(output.calls[i].arguments);
    if (output.calls[i].name != wanted[i].name || !arguments || !are_same(*arguments, wanted[i].arguments)) {
      return false;
    }
  }
  return true;
}

}  // namespace

ChatMessage text_message(ChatRole role, std::string text) {
  ChatMessage message;
  message.role = role;
  message.content.emplace_back().text = std::move(text);
  return message;
}

Sample make_sample(const SampleEncoding& encoding, const Dialogue& dialogue) {
  Sample sample = make_given(encoding, dialogue);
  const ChatPrompt answer = render_answer(dialogue);
  const TextRange whole{0, answer.text.size()};
  append(encoding, answer, std::span(&whole, 1), sample);
  return sample;
}

std::vector<int32_t> make_prompt(const SampleEncoding& encoding, const Dialogue& dialogue) {
  return make_given(encoding, dialogue).ids;
}

std::string answer_text(const Dialogue& dialogue) {
  std::string text = render_answer(dialogue).text;
  text.resize(text.size() - dsml::kEndOfSentence.size());
  return text;
}

AnswerScore score_answer(const Dialogue& dialogue, const Completion& output, bool has_ended) {
  AnswerScore score;
  if (!has_ended) return score;
  if (dialogue.check == Dialogue::Check::kCalls) {
    const auto is_good = [&](const Completion::Call& call) { return is_well_formed(dialogue, call); };
    score.is_well_formed = !output.calls.empty() && std::ranges::all_of(output.calls, is_good);
    score.is_right = score.is_well_formed && has_right_calls(dialogue, output);
    return score;
  }
  const std::string content = trimmed(output.content);
  score.is_well_formed = !content.empty() && output.calls.empty();
  const bool is_option = dialogue.check == Dialogue::Check::kOption;
  const bool is_same = is_option ? first_name(content) == dialogue.key : content == trimmed(text_of(dialogue.answer));
  score.is_right = score.is_well_formed && is_same;
  return score;
}

}  // namespace tidepool
