#include "server/completions.h"

#include <fmt/format.h>

#include <utility>

#include "server/json_writer.h"

namespace tidepool::completions {
namespace {

constexpr int64_t kDefaultMaxTokens = 16;
// The family's layout for filling in the middle.
constexpr std::string_view kFimBegin = "<｜fim▁begin｜>";
constexpr std::string_view kFimHole = "<｜fim▁hole｜>";
constexpr std::string_view kFimEnd = "<｜fim▁end｜>";

struct WriterOptions {
  StreamOptions stream;
  size_t choices_per_prompt = 1;
  std::vector<std::string> echoes;  ///< by prompt; empty without echo
  bool has_logprobs = false;
  bool returns_ids = false;
};

// --- reading --------------------------------------------------------------------------------------------------------

using PromptContent = std::variant<std::string, std::vector<int32_t>>;

bool is_id_list(const Json& value) {
  return value.is_array() && !value.as_array().empty() && !value.as_array().front().is_string() &&
         !value.as_array().front().is_array();
}

std::vector<int32_t> read_ids(const Json& value, const std::string& path) {
  std::vector<int32_t> ids;
  for (const Json& element : value.as_array()) {
    const std::optional<int64_t> id =
        element.kind() == Json::Kind::kInteger ? element.try_int64() : std::optional<int64_t>();
    if (!id || *id < 0 || *id > INT32_MAX) refuse_field(path, "has an element that is no token id");
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

std::vector<PromptContent> read_prompts(const JsonFields& body) {
  const Json* value = body.find("prompt");
  if (value == nullptr) body.fail("prompt", "is missing");
  std::vector<PromptContent> prompts;
  if (value->is_string()) {
    prompts.emplace_back(value->as_string());
    return prompts;
  }
  if (is_id_list(*value)) {
    prompts.emplace_back(read_ids(*value, "prompt"));
    return prompts;
  }
  if (!value->is_array() || value->as_array().empty()) {
    body.fail("prompt", "must be a string, a list of strings, a list of token ids or a list of such lists");
  }
  const Json::Array& list = value->as_array();
  if (list.size() > kPromptsMax)
    body.fail("prompt", fmt::format("has {} prompts; at most {}", list.size(), kPromptsMax));
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string path = element_path("prompt", i);
    if (list[i].is_string()) {
      prompts.emplace_back(list[i].as_string());
    } else if (is_id_list(list[i])) {
      prompts.emplace_back(read_ids(list[i], path));
    } else {
      refuse_field(path, "must be a string or a list of token ids");
    }
  }
  return prompts;
}

void apply_suffix(const JsonFields& body, const std::string& suffix, std::vector<PromptContent>& prompts) {
  const std::string* prefix = prompts.size() == 1 ? std::get_if<std::string>(prompts.data()) : nullptr;
  if (prefix == nullptr) body.fail("suffix", "is possible with one prompt only, a string");
  if (body.flag("echo").value_or(false)) body.fail("echo", "is not possible with a suffix");
  prompts.front() = fmt::format("{}{}{}{}{}", kFimBegin, *prefix, kFimHole, suffix, kFimEnd);
}

std::vector<std::string> read_echoes(const JsonFields& body, const std::vector<PromptContent>& prompts,
                                     const AnswerInfo& info) {
  std::vector<std::string> echoes;
  if (!body.flag("echo").value_or(false)) return echoes;
  if (body.has("logprobs")) body.fail("echo", "is not possible with logprobs");
  for (const PromptContent& prompt : prompts) {
    const auto* text = std::get_if<std::string>(&prompt);
    echoes.push_back(text != nullptr ? *text : shown_token(info.decode(std::get<std::vector<int32_t>>(prompt))));
  }
  return echoes;
}

// --- writing --------------------------------------------------------------------------------------------------------

void begin_answer(JsonWriter& json, const AnswerInfo& info) {
  json.begin_object().field("id", "cmpl-" + info.id).field("object", "text_completion").field("created", info.created);
  json.field("model", info.model).field("system_fingerprint", info.fingerprint);
}

size_t characters(std::string_view text) {
  size_t count = 0;
  for (const char c : text)
    count += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
  return count;
}

/// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}; `offset` counts on in characters of the tokens.
void write_logprobs(JsonWriter& json, const AnswerInfo& info, const std::vector<SampledToken>& tokens, size_t& offset) {
  const auto text_of = [&info](int32_t id) { return shown_token(info.decode(std::span(&id, 1))); };
  json.begin_object().key("tokens").begin_array();
  for (const SampledToken& token : tokens)
    json.string(text_of(token.id));
  json.end_array().key("token_logprobs").begin_array();
  for (const SampledToken& token : tokens)
    token.logprobs ? json.number(token.logprobs->chosen) : json.null();
  json.end_array().key("top_logprobs").begin_array();
  for (const SampledToken& token : tokens) {
    json.begin_object();
    if (token.logprobs) {
      for (const TokenLogprob& top : token.logprobs->top)
        json.key(text_of(top.id)).number(top.logprob);
    }
    json.end_object();
  }
  json.end_array().key("text_offset").begin_array();
  for (const SampledToken& token : tokens) {
    json.integer(static_cast<int64_t>(offset));
    offset += characters(text_of(token.id));
  }
  json.end_array().end_object();
}

/// Pieces and whole answers have the same form: a whole answer is one piece per choice.
class CompletionWriter final : public AnswerWriter {
 public:
  CompletionWriter(AnswerInfo info, WriterOptions options, size_t prompt_count)
      : info_(std::move(info)),
        options_(std::move(options)),
        tally_(prompt_count * options_.choices_per_prompt),
        choices_(prompt_count * options_.choices_per_prompt) {}

  void start(const PromptStart& start, std::string& out) override {
    tally_.start(start);
    if (options_.echoes.empty()) return;
    for (size_t i = 0; i < options_.choices_per_prompt; ++i) {
      const size_t choice = start.prompt * options_.choices_per_prompt + i;
      choices_[choice].text = options_.echoes[start.prompt];
      write_piece(choice, out);
    }
  }
  void output(size_t choice, std::span<const SampledToken> tokens, std::span<const CompletionEvent> events,
              std::string& out) override {
    Choice& target = choices_[choice];
    tally_.count(tokens.size());
    for (const CompletionEvent& event : events)
      target.text += event.text;
    if (options_.has_logprobs || options_.returns_ids) {
      target.tokens.insert(target.tokens.end(), tokens.begin(), tokens.end());
    }
    if (!target.text.empty()) write_piece(choice, out);
  }
  void finish(size_t choice, const ServiceFinish& finish, std::string& out) override {
    tally_.finish(choice, finish);
    write_piece(choice, out);
  }
  void end(std::string& out) override {
    JsonWriter json(out);
    if (!options_.stream.is_stream) {
      begin_answer(json, info_);
      json.key("choices").begin_array();
      for (size_t i = 0; i < choices_.size(); ++i)
        write_choice(json, i);
      write_openai_usage(json.end_array().key("usage"), tally_);
      json.end_object();
      return;
    }
    if (options_.stream.includes_usage) {
      out += "data: ";
      begin_answer(json, info_);
      write_openai_usage(json.key("choices").begin_array().end_array().key("usage"), tally_);
      json.end_object();
      out += "\n\n";
    }
    out += "data: [DONE]\n\n";
  }
  void fail(const ApiError& error, std::string& out) override {
    out += "data: " + error_body(error, ErrorDialect::kOpenAi, info_.request_id) + "\n\n";
  }

 private:
  struct Choice {
    std::string text;                  ///< not sent yet
    std::vector<SampledToken> tokens;  ///< not sent yet
    size_t offset = 0;                 ///< of the next token, in characters
  };

  void write_piece(size_t choice, std::string& out) {
    if (!options_.stream.is_stream) return;
    out += "data: ";
    JsonWriter json(out);
    begin_answer(json, info_);
    json.key("choices").begin_array();
    write_choice(json, choice);
    json.end_array();
    if (options_.stream.is_usage_continuous) {
      write_openai_usage(json.key("usage"), tally_);
    } else if (options_.stream.includes_usage) {
      json.null_field("usage");
    }
    json.end_object();
    out += "\n\n";
  }

  /// What of the choice was not sent yet.
  void write_choice(JsonWriter& json, size_t index) {
    Choice& choice = choices_[index];
    const std::vector<SampledToken> tokens = std::exchange(choice.tokens, {});
    json.begin_object().field("index", index).field("text", std::exchange(choice.text, {})).key("logprobs");
    if (options_.has_logprobs) {
      write_logprobs(json, info_, tokens, choice.offset);
    } else {
      json.null();
    }
    const std::optional<ServiceFinish>& finish = tally_.finish_of(index);
    json.key("finish_reason");
    finish ? json.string(openai_finish_reason(*finish)) : json.null();
    if (options_.returns_ids) {
      json.key("token_ids").begin_array();
      for (const SampledToken& token : tokens)
        json.integer(token.id);
      json.end_array();
    }
    json.end_object();
  }

  AnswerInfo info_;
  WriterOptions options_;
  UsageTally tally_;
  std::vector<Choice> choices_;
};

}  // namespace

ApiCall read_call(const Json& body, const ApiContext& context) {
  const JsonFields fields(body);
  ServiceRequest request;
  request.sampling = context.sampling;
  request.sampling.seed = context.seed;
  read_openai_fields(fields, request);
  request.max_tokens = fields.integer("max_tokens", 1).value_or(kDefaultMaxTokens);
  if (const auto top = fields.integer("logprobs", 0, kTopLogprobsMax)) {
    request.wants_logprobs = true;
    request.sampling.top_logprobs = *top;
  }

  std::vector<PromptContent> prompts = read_prompts(fields);
  if (const std::string* suffix = fields.string("suffix")) apply_suffix(fields, *suffix, prompts);
  WriterOptions options;
  options.stream = read_stream_options(fields);
  options.choices_per_prompt = request.choice_count;
  options.has_logprobs = request.wants_logprobs;
  options.returns_ids = fields.flag("return_token_ids").value_or(false);
  options.echoes = read_echoes(fields, prompts, context.info);

  ApiCall call;
  call.is_stream = options.stream.is_stream;
  call.writer = std::make_unique<CompletionWriter>(context.info, std::move(options), prompts.size());
  const bool adds_bos = fields.flag("add_special_tokens").value_or(true);
  for (PromptContent& prompt : prompts) {
    request.prompt = RawPrompt{std::move(prompt), adds_bos};
    call.requests.push_back(request);
  }
  return call;
}

}  // namespace tidepool::completions
