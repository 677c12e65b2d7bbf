#include "server/chat_writers.h"

#include <utility>

#include "server/json_writer.h"

namespace tidepool::chat {
namespace {

void write_logprobs(JsonWriter& json, const AnswerInfo& info, const AnswerLogprobs& logprobs) {
  json.begin_object().key("content");
  write_token_logprobs(json, info, logprobs.content);
  json.key("reasoning_content");
  write_token_logprobs(json, info, logprobs.reasoning);
  json.end_object();
}

void write_ids(JsonWriter& json, const std::vector<int32_t>& ids) {
  json.key("token_ids").begin_array();
  for (const int32_t id : ids)
    json.integer(id);
  json.end_array();
}

void begin_answer(JsonWriter& json, const AnswerInfo& info, std::string_view object) {
  json.begin_object().field("id", "chatcmpl-" + info.id).field("object", object);
  json.field("created", info.created).field("model", info.model).field("system_fingerprint", info.fingerprint);
}

std::string call_id(const AnswerInfo& info, size_t choice, size_t call) {
  return make_item_id("call_", info.id, choice * 100 + call);
}

// --- whole answers --------------------------------------------------------------------------------------------------

class WholeWriter final : public AnswerWriter {
 public:
  WholeWriter(AnswerInfo info, const WriterOptions& options)
      : info_(std::move(info)), options_(options), tally_(options.choice_count) {
    for (size_t i = 0; i < options.choice_count; ++i)
      choices_.push_back({AnswerText(), AnswerLogprobs(), ReasoningSplit(options.is_thinking, info_.think_end), {}});
  }

  void start(const PromptStart& start, std::string& /*out*/) override { tally_.start(start); }
  void output(size_t choice, std::span<const SampledToken> tokens, std::span<const CompletionEvent> events,
              std::string& /*out*/) override {
    Choice& target = choices_[choice];
    for (const CompletionEvent& event : events)
      target.text.add(event);
    if (options_.has_logprobs) target.split.add(tokens, events, target.logprobs);
    for (const SampledToken& token : tokens)
      target.ids.push_back(token.id);
  }
  void finish(size_t choice, const ServiceFinish& finish, std::string& /*out*/) override {
    tally_.finish(choice, finish);
  }
  void end(std::string& out) override {
    JsonWriter json(out);
    begin_answer(json, info_, "chat.completion");
    json.key("choices").begin_array();
    for (size_t i = 0; i < choices_.size(); ++i)
      write_choice(json, i);
    json.end_array().key("usage");
    write_openai_usage(json, tally_);
    json.end_object();
  }
  void fail(const ApiError& /*error*/, std::string& /*out*/) override {}

 private:
  struct Choice {
    AnswerText text;
    AnswerLogprobs logprobs;
    ReasoningSplit split;
    std::vector<int32_t> ids;
  };

  void write_choice(JsonWriter& json, size_t index) {
    const Choice& choice = choices_[index];
    const AnswerText& text = choice.text;
    json.begin_object().field("index", index).key("message").begin_object().field("role", "assistant");
    text.content.empty() && !text.calls.empty() ? json.null_field("content") : json.field("content", text.content);
    options_.is_thinking ? json.field("reasoning_content", text.reasoning) : json.null_field("reasoning_content");
    if (!text.calls.empty()) write_calls(json, index, text.calls);
    json.end_object().key("logprobs");
    if (options_.has_logprobs) {
      write_logprobs(json, info_, choice.logprobs);
    } else {
      json.null();
    }
    const std::optional<ServiceFinish>& finish = tally_.finish_of(index);
    json.key("finish_reason");
    finish ? json.string(openai_finish_reason(*finish)) : json.null();
    if (options_.returns_ids) write_ids(json, choice.ids);
    json.end_object();
  }

  void write_calls(JsonWriter& json, size_t choice, const std::vector<AnswerCall>& calls) const {
    json.key("tool_calls").begin_array();
    for (size_t i = 0; i < calls.size(); ++i) {
      json.begin_object().field("id", call_id(info_, choice, i)).field("type", "function");
      json.key("function").begin_object().field("name", calls[i].name).field("arguments", calls[i].arguments);
      json.end_object().end_object();
    }
    json.end_array();
  }

  AnswerInfo info_;
  WriterOptions options_;
  UsageTally tally_;
  std::vector<Choice> choices_;
};

// --- chunks ---------------------------------------------------------------------------------------------------------

class ChunkWriter final : public AnswerWriter {
 public:
  ChunkWriter(AnswerInfo info, const WriterOptions& options)
      : info_(std::move(info)), options_(options), tally_(options.choice_count) {
    JsonWriter json(head_);
    begin_answer(json, info_, "chat.completion.chunk");
    for (size_t i = 0; i < options.choice_count; ++i)
      choices_.push_back({AnswerLogprobs(), ReasoningSplit(options.is_thinking, info_.think_end), {}});
  }

  void start(const PromptStart& start, std::string& out) override {
    tally_.start(start);
    for (size_t i = 0; i < choices_.size(); ++i) {
      chunk(i, out, [this](JsonWriter& json) {
        json.field("role", "assistant");
        options_.is_thinking ? json.null_field("content").field("reasoning_content", "") : json.field("content", "");
      });
    }
  }
  void output(size_t choice, std::span<const SampledToken> tokens, std::span<const CompletionEvent> events,
              std::string& out) override {
    Choice& target = choices_[choice];
    tally_.count(tokens.size());
    if (options_.has_logprobs) target.split.add(tokens, events, target.logprobs);
    if (options_.returns_ids) {
      for (const SampledToken& token : tokens)
        target.ids.push_back(token.id);
    }
    for (const CompletionEvent& event : events)
      write_event(choice, event, out);
  }
  void finish(size_t choice, const ServiceFinish& finish, std::string& out) override {
    tally_.finish(choice, finish);
    chunk(
        choice, out, [](JsonWriter& json) { json.field("content", ""); }, openai_finish_reason(finish));
  }
  void end(std::string& out) override {
    if (options_.stream.includes_usage) {
      out += "data: ";
      out += head_;
      out += ",\"choices\":[],\"usage\":";
      JsonWriter json(out);
      write_openai_usage(json, tally_);
      out += "}\n\n";
    }
    out += "data: [DONE]\n\n";
  }
  void fail(const ApiError& error, std::string& out) override {
    out += "data: " + error_body(error, ErrorDialect::kOpenAi, info_.request_id) + "\n\n";
  }

 private:
  struct Choice {
    AnswerLogprobs logprobs;  ///< not sent yet
    ReasoningSplit split;
    std::vector<int32_t> ids;  ///< not sent yet
  };

  void write_event(size_t choice, const CompletionEvent& event, std::string& out) {
    const std::string_view text = event.text;
    switch (event.kind) {
      case CompletionEvent::Kind::kReasoning:
        return chunk(choice, out,
                     [text](JsonWriter& json) { json.null_field("content").field("reasoning_content", text); });
      case CompletionEvent::Kind::kContent:
        return chunk(choice, out, [this, text](JsonWriter& json) {
          json.field("content", text);
          if (options_.is_thinking) json.null_field("reasoning_content");
        });
      case CompletionEvent::Kind::kToolCallStart:
        return call_chunk(choice, event.call_index, out, [&](JsonWriter& json) {
          json.field("id", call_id(info_, choice, event.call_index)).field("type", "function");
          json.key("function").begin_object().field("name", text).field("arguments", "").end_object();
        });
      case CompletionEvent::Kind::kArguments:
        return call_chunk(choice, event.call_index, out, [text](JsonWriter& json) {
          json.key("function").begin_object().field("arguments", text).end_object();
        });
      case CompletionEvent::Kind::kToolCallEnd:
      case CompletionEvent::Kind::kStop: return;
    }
  }

  template <typename Fill>
  void call_chunk(size_t choice, size_t call, std::string& out, const Fill& fill) {
    chunk(choice, out, [&](JsonWriter& json) {
      json.key("tool_calls").begin_array().begin_object().field("index", call);
      fill(json);
      json.end_object().end_array();
    });
  }

  /// One event: `fill` writes the delta's members.
  template <typename Fill>
  void chunk(size_t choice, std::string& out, const Fill& fill, std::string_view finish_reason = "") {
    Choice& target = choices_[choice];
    out += "data: ";
    out += head_;
    out += ',';
    JsonWriter json(out);
    json.key("choices").begin_array().begin_object().field("index", choice).key("delta").begin_object();
    fill(json);
    json.end_object().key("logprobs");
    if (target.logprobs.content.empty() && target.logprobs.reasoning.empty()) {
      json.null();
    } else {
      write_logprobs(json, info_, std::exchange(target.logprobs, {}));
    }
    json.key("finish_reason");
    finish_reason.empty() ? json.null() : json.string(finish_reason);
    if (options_.returns_ids) write_ids(json, std::exchange(target.ids, {}));
    json.end_object().end_array();
    if (options_.stream.is_usage_continuous) {
      write_openai_usage(json.key("usage"), tally_);
    } else if (options_.stream.includes_usage) {
      json.null_field("usage");
    }
    out += "}\n\n";
  }

  AnswerInfo info_;
  WriterOptions options_;
  UsageTally tally_;
  std::string head_;  ///< of every chunk's object, without an end
  std::vector<Choice> choices_;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_writer(AnswerInfo info, const WriterOptions& options) {
  if (options.stream.is_stream) return std::make_unique<ChunkWriter>(std::move(info), options);
  return std::make_unique<WholeWriter>(std::move(info), options);
}

}  // namespace tidepool::chat
