#include "text/vectors.h"

#include <fmt/format.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/checked.h"
#include "base/error.h"
#include "text/chat_encoding.h"
#include "text/chat_encoding_ids.h"
#include "text/chat_request.h"
#include "text/completion_parser.h"
#include "text/detokenizer.h"
#include "text/json.h"
#include "text/strict_parser.h"
#include "text/unicode.h"

namespace tidepool {

namespace {

struct KindName {
  std::string_view name;
  VectorKind kind;
};
constexpr std::array<KindName, 7> kKindNames = {{
    {"tokenize", VectorKind::kTokenize},
    {"detokenize", VectorKind::kDetokenize},
    {"encode", VectorKind::kEncode},
    {"request", VectorKind::kRequest},
    {"prompt-ids", VectorKind::kPromptIds},
    {"parse", VectorKind::kParse},
    {"parse-stream", VectorKind::kParseStream},
}};

// --- input fields ---------------------------------------------------------------------------------------------------

const Json& required(const Json& line, std::string_view key) {
  const Json* value = line.find(key);
  if (value == nullptr) refuse_argument(key, "is missing");
  return *value;
}

const std::string& required_string(const Json& line, std::string_view key) {
  const Json& value = required(line, key);
  if (!value.is_string()) refuse_argument(key, fmt::format("must be a string, not {}", value.kind_name()));
  return value.as_string();
}

const Json::Array& required_list(const Json& line, std::string_view key) {
  const Json& value = required(line, key);
  if (!value.is_array()) refuse_argument(key, fmt::format("must be a list, not {}", value.kind_name()));
  return value.as_array();
}

bool optional_flag(const Json& line, std::string_view key) {
  const Json* value = line.find(key);
  if (value == nullptr || value->is_null()) return false;
  if (!value->is_bool()) refuse_argument(key, fmt::format("must be a boolean, not {}", value->kind_name()));
  return value->as_bool();
}

std::vector<std::string> optional_strings(const Json& line, std::string_view key) {
  std::vector<std::string> strings;
  if (line.find(key) == nullptr) return strings;
  for (const Json& value : required_list(line, key)) {
    if (!value.is_string()) refuse_argument(key, "must be a list of strings");
    strings.push_back(value.as_string());
  }
  return strings;
}

// --- output fields --------------------------------------------------------------------------------------------------

Json ids_json(std::span<const int32_t> ids) {
  Json list = Json::make_array();
  for (const int32_t id : ids)
    list.as_array().push_back(Json::make_integer(id));
  return list;
}

Json text_json(std::string_view text) {
  return Json::make_string(std::string(text));
}

std::string hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const char c : bytes) {
    out += kDigits[static_cast<unsigned char>(c) >> 4];
    out += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return out;
}

/// SHA-256, in hexadecimal, of ids as little-endian 32-bit integers.
std::string sha256_of_ids(std::span<const int32_t> ids) {
  std::string bytes;
  for (const int32_t id : ids) {
    for (const int shift : {0, 8, 16, 24})
      bytes += static_cast<char>(static_cast<uint32_t>(id) >> shift & 0xFFU);
  }
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  return hex({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

// --- kinds ----------------------------------------------------------------------------------------------------------

void tokenize_repeated(const Json& line, const Tokenizer& tokenizer, Json& answer) {
  constexpr size_t kShown = 16;
  const std::string& unit = required_string(line, "unit");
  const std::optional<int64_t> repeat = required(line, "repeat").try_int64();
  if (!repeat || *repeat < 0) refuse_argument("repeat", "must be a count");
  const std::optional<uint64_t> bytes = checked_mul(unit.size(), static_cast<uint64_t>(*repeat));
  if (!bytes || *bytes > Tokenizer::kTextBytesMax) {
    refuse_argument("repeat", fmt::format("the text would exceed {} bytes", Tokenizer::kTextBytesMax));
  }
  std::string text;
  text.reserve(*bytes);
  while (text.size() < *bytes)
    text += unit;
  const std::vector<int32_t> ids = tokenizer.encode(text);
  const std::span<const int32_t> all = ids;
  const size_t shown = std::min(kShown, ids.size());
  answer.set("ids_count", Json::make_integer(static_cast<int64_t>(ids.size())));
  answer.set("ids_sha256_le_i32", text_json(sha256_of_ids(ids)));
  answer.set("first_ids", ids_json(all.first(shown)));
  answer.set("last_ids", ids_json(all.last(shown)));
}

void tokenize(const Json& line, const Tokenizer& tokenizer, Json& answer) {
  if (line.find("unit") != nullptr) {
    tokenize_repeated(line, tokenizer, answer);
    return;
  }
  const std::string& text = required_string(line, "text");
  const std::vector<int32_t> ids = tokenizer.encode(text);
  const std::vector<int32_t> plain = tokenizer.encode_plain(text);
  answer.set("ids", ids_json(ids));
  if (plain != ids) answer.set("ids_plain", ids_json(plain));
}

void detokenize(const Json& line, const Tokenizer& tokenizer, Json& answer) {
  std::vector<int32_t> ids;
  for (const Json& value : required_list(line, "ids")) {
    const std::optional<int64_t> id = value.try_int64();
    if (!id || *id < 0 || *id > std::numeric_limits<int32_t>::max())
      refuse_argument("ids", "must be a list of token ids");
    ids.push_back(static_cast<int32_t>(*id));
  }
  const std::string bytes = tokenizer.decode(ids);
  answer.set("text", text_json(replace_invalid_utf8(bytes)));
  answer.set("bytes_hex", text_json(hex(bytes)));
  Detokenizer stream(tokenizer);
  Json pieces = Json::make_array();
  for (const int32_t id : ids)
    pieces.as_array().push_back(text_json(stream.push(id)));
  answer.set("stream_pieces", std::move(pieces));
  answer.set("stream_flush", text_json(stream.flush()));
}

ChatPrompt encode_messages(const Json& line) {
  std::vector<ChatMessage> messages = parse_chat_messages(required(line, "messages"));
  const Json* tools = line.find("tools");
  if (tools != nullptr && !tools->is_null()) {
    if (!tools->is_array()) refuse_argument("tools", fmt::format("must be a list, not {}", tools->kind_name()));
    if (!messages.empty()) messages.front().tools = tools->as_array();
  }
  ChatEncodingOptions options = parse_chat_encoding_options(required(line, "options"));
  const Json* context = line.find("context");
  if (context != nullptr && !context->is_null()) options.context = parse_chat_messages(*context);
  return encode_chat(messages, options);
}

PreparedChat encode_request(const Json& line) {
  return encode_chat_request(parse_chat_request(required(line, "request")));
}

void encode(const Json& line, Json& answer) {
  ChatPrompt prompt = encode_messages(line);
  answer.set("prompt", text_json(prompt.text));
  if (!prompt.images.empty()) answer.set("images", Json::make_array(std::move(prompt.images)));
}

void request(const Json& line, Json& answer) {
  const PreparedChat prepared = encode_request(line);
  answer.set("prompt", text_json(prepared.prompt.text));
  answer.set("output_starts_in", text_json(output_start_name(prepared.output_starts_in)));
  const size_t images = prepared.prompt.images.size();
  if (images > 0) answer.set("images", Json::make_integer(static_cast<int64_t>(images)));
}

void prompt_to_ids(const Json& line, const Tokenizer& tokenizer, Json& answer) {
  ChatPrompt prompt;
  if (line.find("messages") != nullptr) {
    prompt = encode_messages(line);
  } else if (line.find("request") != nullptr) {
    prompt = encode_request(line).prompt;
  } else {
    answer.set("ids", ids_json(tokenizer.encode(required_string(line, "prompt"))));
    return;
  }
  const std::vector<int32_t> ids = tokenizer.encode(prompt.text);
  const std::vector<int32_t> safe = prompt_ids(tokenizer, prompt);
  answer.set("prompt", text_json(prompt.text));
  answer.set("ids", ids_json(ids));
  if (safe != ids) answer.set("ids_safe", ids_json(safe));
}

void parse(const Json& line, Json& answer) {
  const ThinkingMode mode = parse_chat_encoding_options(line).mode;
  const ParsedMessage message = parse_completion_strictly(required_string(line, "completion"), mode);
  Json calls = Json::make_array();
  for (const ParsedCall& call : message.tool_calls) {
    Json function = Json::make_object();
    function.set("name", text_json(call.name));
    function.set("arguments", text_json(call.arguments));
    Json shown = Json::make_object();
    shown.set("type", text_json("function"));
    shown.set("function", std::move(function));
    if (!call.space.empty()) shown.set("namespace", text_json(call.space));
    calls.as_array().push_back(std::move(shown));
  }
  Json shown = Json::make_object();
  shown.set("role", text_json("assistant"));
  shown.set("content", text_json(message.content));
  shown.set("reasoning_content", text_json(message.reasoning));
  shown.set("tool_calls", std::move(calls));
  answer.set("message", std::move(shown));
}

void parse_stream(const Json& line, Json& answer) {
  const Json& given = required(line, "options");
  CompletionParserOptions options;
  options.has_tools = optional_flag(given, "tools");
  if (optional_flag(given, "thinking")) options.start = OutputStart::kReasoning;
  if (optional_flag(given, "forced_tool_prefix")) options.start = OutputStart::kCalls;
  options.stops = optional_strings(given, "stop");
  std::vector<std::string> pieces = optional_strings(line, "pieces");
  if (line.find("pieces") == nullptr) pieces.push_back(required_string(line, "text"));

  CompletionParser parser(std::move(options));
  Completion completion;
  for (const std::string& piece : pieces)
    completion.add(parser.feed(piece));
  completion.add(parser.finish());
  Json calls = Json::make_array();
  for (const Completion::Call& call : completion.calls) {
    Json shown = Json::make_object();
    shown.set("name", text_json(call.name));
    shown.set("arguments", text_json(call.arguments));
    calls.as_array().push_back(std::move(shown));
  }
  Json result = Json::make_object();
  result.set("reasoning_content", text_json(completion.reasoning));
  result.set("content", text_json(completion.content));
  result.set("tool_calls", std::move(calls));
  result.set("stop_sequence_hit", Json::make_bool(completion.has_hit_stop));
  answer.set("result", std::move(result));
}

void compute(VectorKind kind, const Json& line, const Tokenizer* tokenizer, Json& answer) {
  switch (kind) {
    case VectorKind::kTokenize: tokenize(line, *tokenizer, answer); return;
    case VectorKind::kDetokenize: detokenize(line, *tokenizer, answer); return;
    case VectorKind::kEncode: encode(line, answer); return;
    case VectorKind::kRequest: request(line, answer); return;
    case VectorKind::kPromptIds: prompt_to_ids(line, *tokenizer, answer); return;
    case VectorKind::kParse: parse(line, answer); return;
    case VectorKind::kParseStream: parse_stream(line, answer); return;
  }
}

}  // namespace

std::optional<VectorKind> try_vector_kind(std::string_view name) {
  for (const KindName& known : kKindNames) {
    if (known.name == name) return known.kind;
  }
  return std::nullopt;
}

bool needs_tokenizer(VectorKind kind) {
  return kind == VectorKind::kTokenize || kind == VectorKind::kDetokenize || kind == VectorKind::kPromptIds;
}

std::string answer_vector(VectorKind kind, std::string_view line, const Tokenizer* tokenizer) {
  TIDEPOOL_CHECK(tokenizer != nullptr || !needs_tokenizer(kind), "this kind needs a tokenizer");
  Json label = Json::make_object();
  try {
    const Json input = parse_json(line);
    for (const std::string_view key : {"id", "name"}) {
      if (const Json* value = input.find(key)) label.set(key, *value);
    }
    Json answer = label;
    compute(kind, input, tokenizer, answer);
    return write_json(answer);
  } catch (const Error& error) {
    label.set("error", Json::make_bool(true));
    label.set("reason", text_json(error.what()));
    return write_json(label);
  }
}

}  // namespace tidepool
