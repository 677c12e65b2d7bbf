#include "server/anthropic_writers.h"

#include <optional>
#include <utility>

#include "base/error.h"
#include "server/json_writer.h"

namespace tidepool::messages {
namespace {

std::string_view stop_reason(const ServiceFinish& finish) {
  switch (finish.reason) {
    case FinishReason::kStopToken:
    case FinishReason::kStopText:
      if (finish.stop_index) return "stop_sequence";
      return finish.has_calls ? "tool_use" : "end_turn";
    case FinishReason::kMaxTokens:
    case FinishReason::kContextFull: return "max_tokens";
    case FinishReason::kCancelled: return "end_turn";
  }
  return "end_turn";
}

/// The members that say why a message ended; null while it goes on.
void write_stop(JsonWriter& json, const std::optional<ServiceFinish>& finish, const std::vector<std::string>& stops) {
  if (!finish) {
    json.null_field("stop_reason").null_field("stop_sequence");
    return;
  }
  json.field("stop_reason", stop_reason(*finish)).key("stop_sequence");
  finish->stop_index&& * finish->stop_index < stops.size() ? json.string(stops[*finish->stop_index]) : json.null();
}

/// input_tokens leaves out what the cache had.
void write_usage(JsonWriter& json, const UsageTally& tally, int64_t output_tokens) {
  json.begin_object().field("input_tokens", tally.prompt_tokens() - tally.cached_tokens());
  json.field("cache_read_input_tokens", tally.cached_tokens()).field("cache_creation_input_tokens", 0);
  json.field("output_tokens", output_tokens);
  write_prompt_cache(json, tally);
  json.end_object();
}

void begin_message(JsonWriter& json, const AnswerInfo& info) {
  json.begin_object().field("id", "msg_" + info.id).field("type", "message").field("role", "assistant");
  json.field("model", info.model);
}

/// The arguments as an object: Anthropic's clients get no text. What does not parse becomes {}.
Json call_input(const AnswerCall& call) {
  try {
    Json input = parse_json(call.arguments);
    if (input.is_object()) return input;
  } catch (const Error&) {
    // Cut short, or written wrongly by the model: the message says {} then. (docs/api.md)
  }
  return Json::make_object();
}

void write_block(JsonWriter& json, std::string_view type, std::string_view text, const AnswerInfo& info) {
  json.begin_object().field("type", type).field(type, text);
  if (type == "thinking") json.field("signature", "msg_" + info.id);
  json.end_object();
}

class WholeWriter final : public AnswerWriter {
 public:
  WholeWriter(AnswerInfo info, WriterOptions options) : info_(std::move(info)), options_(std::move(options)) {}

  void start(const PromptStart& start, std::string& /*out*/) override { tally_.start(start); }
  void output(size_t /*choice*/, std::span<const SampledToken> /*tokens*/, std::span<const CompletionEvent> events,
              std::string& /*out*/) override {
    for (const CompletionEvent& event : events)
      text_.add(event);
  }
  void finish(size_t choice, const ServiceFinish& finish, std::string& /*out*/) override {
    tally_.finish(choice, finish);
  }
  void end(std::string& out) override {
    JsonWriter json(out);
    begin_message(json, info_);
    json.key("content").begin_array();
    if (!text_.reasoning.empty()) write_block(json, "thinking", text_.reasoning, info_);
    if (!text_.content.empty()) write_block(json, "text", text_.content, info_);
    for (size_t i = 0; i < text_.calls.size(); ++i) {
      json.begin_object().field("type", "tool_use").field("id", make_item_id("toolu_", info_.id, i));
      json.field("name", text_.calls[i].name).key("input").json(call_input(text_.calls[i])).end_object();
    }
    json.end_array();
    write_stop(json, tally_.finish_of(0), options_.stops);
    write_usage(json.key("usage"), tally_, tally_.completion_tokens());
    json.end_object();
  }
  void fail(const ApiError& /*error*/, std::string& /*out*/) override {}

 private:
  AnswerInfo info_;
  WriterOptions options_;
  UsageTally tally_{1};
  AnswerText text_;
};

class EventWriter final : public AnswerWriter {
 public:
  EventWriter(AnswerInfo info, WriterOptions options) : info_(std::move(info)), options_(std::move(options)) {}

  void start(const PromptStart& start, std::string& out) override {
    tally_.start(start);
    event(out, "message_start", [this](JsonWriter& json) {
      begin_message(json.key("message"), info_);
      write_stop(json.key("content").begin_array().end_array(), std::nullopt, options_.stops);
      write_usage(json.key("usage"), tally_, 0);
      json.end_object();
    });
  }

  void output(size_t /*choice*/, std::span<const SampledToken> /*tokens*/, std::span<const CompletionEvent> events,
              std::string& out) override {
    for (const CompletionEvent& what : events)
      write_event(what, out);
  }

  void finish(size_t choice, const ServiceFinish& finish, std::string& out) override {
    tally_.finish(choice, finish);
    close_block(out);
    event(out, "message_delta", [&](JsonWriter& json) {
      write_stop(json.key("delta").begin_object(), finish, options_.stops);
      write_usage(json.end_object().key("usage"), tally_, finish.usage.completion_tokens);
    });
  }
  void end(std::string& out) override {
    event(out, "message_stop", [](JsonWriter& /*json*/) {});
  }
  void fail(const ApiError& error, std::string& out) override {
    out += "event: error\ndata: " + error_body(error, ErrorDialect::kAnthropic, info_.request_id) + "\n\n";
  }

 private:
  enum class Block { kNone, kThinking, kText, kCall };

  void write_event(const CompletionEvent& what, std::string& out) {
    switch (what.kind) {
      case CompletionEvent::Kind::kReasoning: return write_text(Block::kThinking, what.text, out);
      case CompletionEvent::Kind::kContent: return write_text(Block::kText, what.text, out);
      case CompletionEvent::Kind::kToolCallStart:
        close_block(out);
        return open_block(Block::kCall, out, [&](JsonWriter& json) {
          json.field("type", "tool_use").field("id", make_item_id("toolu_", info_.id, what.call_index));
          json.field("name", what.text).key("input").begin_object().end_object();
        });
      case CompletionEvent::Kind::kArguments: return delta(out, "input_json_delta", "partial_json", what.text);
      case CompletionEvent::Kind::kToolCallEnd: return close_block(out);
      case CompletionEvent::Kind::kStop: return;
    }
  }

  void write_text(Block block, std::string_view text, std::string& out) {
    if (text.empty()) return;
    const bool is_thinking = block == Block::kThinking;
    if (block_ != block) {
      close_block(out);
      open_block(block, out, [is_thinking](JsonWriter& json) {
        json.field("type", is_thinking ? "thinking" : "text").field(is_thinking ? "thinking" : "text", "");
        if (is_thinking) json.field("signature", "");
      });
    }
    delta(out, is_thinking ? "thinking_delta" : "text_delta", is_thinking ? "thinking" : "text", text);
  }

  template <typename Fill>
  void open_block(Block block, std::string& out, const Fill& fill) {
    block_ = block;
    event(out, "content_block_start", [&](JsonWriter& json) {
      json.field("index", index_).key("content_block").begin_object();
      fill(json);
      json.end_object();
    });
    if (index_ == 0) event(out, "ping", [](JsonWriter& /*json*/) {});
  }

  void close_block(std::string& out) {
    if (block_ == Block::kNone) return;
    if (block_ == Block::kThinking) delta(out, "signature_delta", "signature", "msg_" + info_.id);
    event(out, "content_block_stop", [this](JsonWriter& json) { json.field("index", index_); });
    block_ = Block::kNone;
    ++index_;
  }

  void delta(std::string& out, std::string_view type, std::string_view key, std::string_view text) const {
    event(out, "content_block_delta", [&](JsonWriter& json) {
      json.field("index", index_).key("delta").begin_object().field("type", type).field(key, text).end_object();
    });
  }

  template <typename Fill>
  static void event(std::string& out, std::string_view type, const Fill& fill) {
    out += "event: ";
    out += type;
    out += "\ndata: ";
    JsonWriter json(out);
    json.begin_object().field("type", type);
    fill(json);
    json.end_object();
    out += "\n\n";
  }

  AnswerInfo info_;
  WriterOptions options_;
  UsageTally tally_{1};
  Block block_ = Block::kNone;
  size_t index_ = 0;  ///< of the open block, or the next
};

}  // namespace

std::unique_ptr<AnswerWriter> make_writer(AnswerInfo info, WriterOptions options) {
  if (options.is_stream) return std::make_unique<EventWriter>(std::move(info), std::move(options));
  return std::make_unique<WholeWriter>(std::move(info), std::move(options));
}

}  // namespace tidepool::messages
