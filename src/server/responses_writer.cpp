#include "server/responses_writer.h"

#include <utility>

#include "server/custom_input.h"
#include "server/json_writer.h"

namespace tidepool::responses {
namespace {

/// One part of a response's output.
struct Item {
  enum class Kind { kReasoning, kMessage, kCall, kCustomCall } kind = Kind::kMessage;
  std::string id;
  std::string text;  ///< reasoning, answer or arguments
  AnswerCall call;
  std::vector<SampledToken> logprobs;
  bool is_done = false;
  bool is_complete = false;
};

std::string_view item_prefix(Item::Kind kind) {
  switch (kind) {
    case Item::Kind::kReasoning: return "rs_";
    case Item::Kind::kMessage: return "msg_";
    case Item::Kind::kCall: return "fc_";
    case Item::Kind::kCustomCall: return "ctc_";
  }
  return "";
}

class ResponseWriter final : public AnswerWriter {
 public:
  ResponseWriter(AnswerInfo info, WriterOptions options)
      : info_(std::move(info)), options_(std::move(options)), split_(options_.is_thinking, info_.think_end) {}

  void start(const PromptStart& start, std::string& out) override {
    tally_.start(start);
    for (const std::string_view type : {"response.created", "response.in_progress"}) {
      event(out, type, [this](JsonWriter& json) { write_response(json.key("response"), "in_progress"); });
    }
  }
  void output(size_t /*choice*/, std::span<const SampledToken> tokens, std::span<const CompletionEvent> events,
              std::string& out) override {
    if (options_.has_logprobs) split_.add(tokens, events, logprobs_);
    for (const CompletionEvent& what : events)
      add(what, out);
  }
  void finish(size_t choice, const ServiceFinish& finish, std::string& out) override {
    tally_.finish(choice, finish);
    const bool is_cut = openai_finish_reason(finish) == "length";
    if (!items_.empty() && !items_.back().is_done) close_item(!is_cut, out);
  }
  void end(std::string& out) override {
    const bool is_cut = openai_finish_reason(*tally_.finish_of(0)) == "length";
    const std::string_view status = is_cut ? "incomplete" : "completed";
    if (!options_.is_stream) {
      JsonWriter json(out);
      return write_response(json, status);
    }
    event(out, is_cut ? "response.incomplete" : "response.completed",
          [&](JsonWriter& json) { write_response(json.key("response"), status); });
  }
  void fail(const ApiError& error, std::string& out) override {
    event(out, "response.failed", [&](JsonWriter& json) { write_response(json.key("response"), "failed", &error); });
  }

 private:
  // --- items

  void add(const CompletionEvent& what, std::string& out) {
    switch (what.kind) {
      case CompletionEvent::Kind::kReasoning: return add_text(Item::Kind::kReasoning, what.text, out);
      case CompletionEvent::Kind::kContent: return add_text(Item::Kind::kMessage, what.text, out);
      case CompletionEvent::Kind::kToolCallStart: {
        const bool is_custom = options_.custom_tools.contains(what.text);
        if (is_custom) custom_input_ = {};
        Item item;
        item.kind = is_custom ? Item::Kind::kCustomCall : Item::Kind::kCall;
        item.call.id = make_item_id("call_", info_.id, what.call_index);
        item.call.space = what.space;
        item.call.bare_name = what.space.empty() ? what.text : what.name;
        return open_item(std::move(item), out);
      }
      case CompletionEvent::Kind::kArguments:
        if (items_.back().kind == Item::Kind::kCustomCall) return add_input(custom_input_.feed(what.text), out);
        items_.back().text += what.text;
        return delta(out, "function_call_arguments", what.text);
      case CompletionEvent::Kind::kToolCallEnd: return close_item(true, out);
      case CompletionEvent::Kind::kStop: return;
    }
  }

  void add_input(const std::string& text, std::string& out) {
    items_.back().text += text;
    delta(out, "custom_tool_call_input", text);
  }

  void add_text(Item::Kind kind, std::string_view text, std::string& out) {
    if (text.empty()) return;
    if (items_.empty() || items_.back().is_done || items_.back().kind != kind) {
      Item item;
      item.kind = kind;
      open_item(std::move(item), out);
    }
    items_.back().text += text;
    delta(out, kind == Item::Kind::kReasoning ? "reasoning_text" : "output_text", text);
  }

  void open_item(Item item, std::string& out) {
    if (!items_.empty() && !items_.back().is_done) close_item(true, out);
    item.id = make_item_id(item_prefix(item.kind), info_.id, items_.size());
    items_.push_back(std::move(item));
    event(out, "response.output_item.added", [this](JsonWriter& json) {
      write_item(json.field("output_index", items_.size() - 1).key("item"), items_.back());
    });
    if (has_part()) part_event(out, "added");
  }

  void close_item(bool is_complete, std::string& out) {
    Item& item = items_.back();
    item.is_done = true;
    item.is_complete = is_complete;
    if (item.kind == Item::Kind::kMessage) {
      const std::vector<SampledToken> tokens = std::exchange(logprobs_.content, {});
      item.logprobs.insert(item.logprobs.end(), tokens.begin(), tokens.end());
    }
    write_done(item, out);
    event(out, "response.output_item.done", [this](JsonWriter& json) {
      write_item(json.field("output_index", items_.size() - 1).key("item"), items_.back());
    });
  }

  /// The events that end an item's text.
  void write_done(Item& item, std::string& out) {
    switch (item.kind) {
      case Item::Kind::kReasoning:
        item_event(out, "reasoning_text.done", [&](JsonWriter& json) { json.field("text", item.text); });
        return part_event(out, "done");
      case Item::Kind::kMessage:
        item_event(out, "output_text.done", [&](JsonWriter& json) {
          write_token_logprobs(json.field("text", item.text).key("logprobs"), info_, item.logprobs);
        });
        return part_event(out, "done");
      case Item::Kind::kCall:
        return item_event(out, "function_call_arguments.done", [&](JsonWriter& json) {
          json.field("name", item.call.bare_name).field("arguments", item.text);
        });
      case Item::Kind::kCustomCall:
        add_input(custom_input_.finish(), out);
        return item_event(out, "custom_tool_call_input.done",
                          [&](JsonWriter& json) { json.field("input", item.text); });
    }
  }

  [[nodiscard]] bool has_part() const {
    return items_.back().kind == Item::Kind::kReasoning || items_.back().kind == Item::Kind::kMessage;
  }

  // --- events

  template <typename Fill>
  void event(std::string& out, std::string_view type, const Fill& fill) {
    if (!options_.is_stream) return;
    out += "event: ";
    out += type;
    out += "\ndata: ";
    JsonWriter json(out);
    json.begin_object().field("type", type).field("sequence_number", sequence_number_++);
    fill(json);
    json.end_object();
    out += "\n\n";
  }

  /// An event about the last item.
  template <typename Fill>
  void item_event(std::string& out, std::string_view name, const Fill& fill) {
    event(out, "response." + std::string(name), [&](JsonWriter& json) {
      json.field("item_id", items_.back().id).field("output_index", items_.size() - 1);
      if (has_part()) json.field("content_index", 0);
      fill(json);
    });
  }

  void part_event(std::string& out, std::string_view what) {
    item_event(out, "content_part." + std::string(what),
               [this](JsonWriter& json) { write_part(json.key("part"), items_.back()); });
  }

  void delta(std::string& out, std::string_view name, std::string_view text) {
    if (!options_.is_stream || text.empty()) return;
    item_event(out, std::string(name) + ".delta", [&](JsonWriter& json) {
      json.field("delta", text);
      if (items_.back().kind != Item::Kind::kMessage) return;
      const std::vector<SampledToken> tokens = std::exchange(logprobs_.content, {});
      write_token_logprobs(json.key("logprobs"), info_, tokens);
      items_.back().logprobs.insert(items_.back().logprobs.end(), tokens.begin(), tokens.end());
    });
  }

  // --- objects

  void write_part(JsonWriter& json, const Item& item) const {
    json.begin_object();
    if (item.kind == Item::Kind::kReasoning) {
      json.field("type", "reasoning_text").field("text", item.text).end_object();
      return;
    }
    json.field("type", "output_text").field("text", item.text).key("annotations").begin_array().end_array();
    write_token_logprobs(json.key("logprobs"), info_, item.logprobs);
    json.end_object();
  }

  void write_item(JsonWriter& json, const Item& item) const {
    json.begin_object().field("id", item.id);
    const std::string_view status = !item.is_done ? "in_progress" : item.is_complete ? "completed" : "incomplete";
    // A part is announced by an event of its own, so a new item has none yet.
    const bool shows_part = item.is_done || !item.text.empty();
    switch (item.kind) {
      case Item::Kind::kReasoning:
        json.field("type", "reasoning").field("status", status).key("summary").begin_array().end_array();
        json.key("content").begin_array();
        if (shows_part) write_part(json, item);
        json.end_array().null_field("encrypted_content");
        break;
      case Item::Kind::kMessage:
        json.field("type", "message").field("status", status).field("role", "assistant").key("content").begin_array();
        if (shows_part) write_part(json, item);
        json.end_array();
        break;
      case Item::Kind::kCall:
        json.field("type", "function_call").field("status", status).field("call_id", item.call.id);
        json.field("name", item.call.bare_name).field("arguments", item.text);
        if (!item.call.space.empty()) json.field("namespace", item.call.space);
        break;
      case Item::Kind::kCustomCall:
        json.field("type", "custom_tool_call").field("status", status).field("call_id", item.call.id);
        json.field("name", item.call.bare_name).field("input", item.is_done ? item.text : "");
        break;
    }
    json.end_object();
  }

  void write_usage(JsonWriter& json) const {
    const int64_t input = tally_.prompt_tokens();
    const int64_t output = tally_.completion_tokens();
    json.begin_object().field("input_tokens", input);
    json.key("input_tokens_details").begin_object().field("cached_tokens", tally_.cached_tokens()).end_object();
    json.field("output_tokens", output).key("output_tokens_details").begin_object();
    write_output_details(json, tally_);
    json.end_object();
    json.field("total_tokens", input + output);
    write_prompt_cache(json, tally_);
    json.end_object();
  }

  void write_echo(JsonWriter& json, std::string_view key, std::string_view fallback) const {
    const Json* value = options_.echoes.find(key);
    json.key(key);
    value == nullptr ? json.raw(fallback) : json.json(*value);
  }

  void write_response(JsonWriter& json, std::string_view status, const ApiError* error = nullptr) const {
    json.begin_object().field("id", "resp_" + info_.id).field("object", "response");
    json.field("created_at", info_.created).field("status", status).key("error");
    if (error == nullptr) {
      json.null();
    } else {
      json.begin_object().field("code", error->code.empty() ? "server_error" : error->code);
      json.field("message", error->message).end_object();
    }
    json.key("incomplete_details");
    status == "incomplete" ? json.begin_object().field("reason", "max_output_tokens").end_object() : json.null();
    write_echo(json, "instructions", "null");
    write_echo(json, "max_output_tokens", "null");
    json.field("model", info_.model).key("output").begin_array();
    for (const Item& item : items_)
      write_item(json, item);
    json.end_array().field("parallel_tool_calls", options_.allows_parallel_calls).null_field("previous_response_id");
    write_echo(json, "reasoning", R"({"effort":null,"summary":null})");
    json.field("store", false).key("temperature").number(options_.temperature);
    write_echo(json, "text", R"({"format":{"type":"text"}})");
    write_echo(json, "tool_choice", "\"auto\"");
    write_echo(json, "tools", "[]");
    json.key("top_p").number(options_.top_p).field("truncation", "disabled").key("usage");
    status == "in_progress" ? static_cast<void>(json.null()) : write_usage(json);
    write_echo(json, "metadata", "{}");
    json.field("system_fingerprint", info_.fingerprint).end_object();
  }

  AnswerInfo info_;
  WriterOptions options_;
  UsageTally tally_{1};
  ReasoningSplit split_;
  AnswerLogprobs logprobs_;  ///< not written yet
  std::vector<Item> items_;
  CustomInputReader custom_input_;  ///< of the last item, if it is a custom tool's
  int64_t sequence_number_ = 0;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_writer(AnswerInfo info, WriterOptions options) {
  return std::make_unique<ResponseWriter>(std::move(info), std::move(options));
}

}  // namespace tidepool::responses
