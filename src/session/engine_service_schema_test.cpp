// Structured output through the whole service: whatever the random-weight model draws at temperature 1, drafted or not,
// satisfies its schema.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "session/service_test_base.h"
#include "text/grammar_test_support.h"

namespace tidepool {
namespace {

using service_testing::RecordingListener;

class ServiceSchemaTest : public service_testing::ServiceTest {
 protected:
  enum class Form : uint8_t { kAnswer, kThinkingAnswer, kCall };
  struct Trial {
    Form form = Form::kAnswer;
    Json schema;
    ServiceRequest request;
    RecordingListener listener;
    std::unique_ptr<Service::Ticket> ticket;
  };

  static Form form_of(uint32_t number) {
    constexpr std::array<Form, 5> kForms = {Form::kAnswer, Form::kThinkingAnswer, Form::kAnswer, Form::kCall,
                                            Form::kAnswer};
    return kForms[number % kForms.size()];
  }

  /// Gives strings of any length a small one: the text of a call's parameter ends with a tag, which this vocabulary
  /// spells in a dozen tokens, and random weights do not.
  static void bound_strings(Json& schema) {
    if (schema.is_array()) {
      for (Json& item : schema.as_array())
        bound_strings(item);
    }
    if (!schema.is_object()) return;
    const Json* type = schema.find("type");
    const bool has_length = std::ranges::any_of(std::array{"maxLength", "pattern", "format"},
                                                [&](const char* key) { return schema.find(key) != nullptr; });
    if (type != nullptr && *type == Json::make_string("string") && !has_length)
      schema.set("maxLength", Json::make_integer(6));
    for (JsonMember& member : schema.as_object())
      bound_strings(member.value);
  }

  /// A call's arguments are an object: the schema becomes that of one property.
  static Json arguments_schema(const Json& document) {
    Json schema = parse_json(R"({"type": "object", "required": ["value"], "additionalProperties": false})");
    Json value = Json::make_object();
    for (const JsonMember& member : document.as_object())
      if (member.key != "$defs") value.set(member.key, member.value);
    Json properties = Json::make_object();
    properties.set("value", std::move(value));
    schema.set("properties", std::move(properties));
    schema.set("$defs", *document.find("$defs"));
    return schema;
  }

  static ChatRequest chat_request(Form form, const Json& schema) {
    const std::string text = write_json(schema);
    std::string body = R"({"messages": [{"role": "user", "content": "x"}], "thinking": {"type": ")";
    body += form == Form::kThinkingAnswer ? R"(enabled"})" : R"(disabled"})";
    if (form == Form::kCall) {
      body +=
          R"(, "tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f", "strict": true, )"
          R"("parameters": )" +
          text + "}}]}";
    } else {
      body += R"(, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": )" + text + "}}}";
    }
    return parse_chat_request(parse_json(body));
  }

  static void prepare(Trial& trial, uint32_t number) {
    trial.form = form_of(number);
    Json document = RandomSchema(number).document();
    bound_strings(document);
    trial.schema = trial.form == Form::kCall ? arguments_schema(document) : document;
    trial.request.prompt = chat_request(trial.form, trial.schema);
    trial.request.allows_parallel_calls = false;
    trial.request.sampling.temperature = 1;
    trial.request.sampling.seed = number;
    trial.request.max_tokens = 4000;
    constexpr double kPull = 6;
    // The end is as likely as any of 512 tokens; a pull towards it and towards what closes keeps outputs short.
    const Tokenizer& tokenizer = model()->tokenizer();
    const auto pull = [&](std::string_view token) {
      if (const std::optional<int32_t> id = tokenizer.find_token(token))
        trial.request.sampling.logit_bias.emplace_back(*id, kPull);
    };
    for (const std::string_view token : {"\"", "}", "]"})
      pull(token);
    if (trial.form == Form::kCall) {  // whose strings end with a tag
      for (const std::string_view token : {"<", "</"})
        pull(token);
    }
    trial.request.sampling.logit_bias.emplace_back(tokenizer.find_added_token("</think>").value(), kPull);
    trial.request.sampling.logit_bias.emplace_back(model()->stop_ids().front(), kPull);
  }

  static void check(const Trial& trial) {
    ASSERT_FALSE(trial.listener.error) << trial.listener.error->what();
    const RecordingListener::ChoiceLog& log = trial.listener.choices.at(0);
    const bool is_call = trial.form == Form::kCall;
    ASSERT_EQ(log.finish->reason, is_call ? FinishReason::kStopText : FinishReason::kStopToken);
    ASSERT_EQ(log.completion.calls.size(), is_call ? 1U : 0U);
    const std::string& text = is_call ? log.completion.calls[0].arguments : log.completion.content;
    ASSERT_TRUE(SchemaOracle(trial.schema).is_valid(parse_json(text))) << text;
  }

  /// `count` trials from number `begin` on, sixteen at a time.
  static void run_trials(Service& service, uint32_t begin, uint32_t count) {
    constexpr uint32_t kAtOnce = 16;
    for (uint32_t first = begin; first < begin + count; first += kAtOnce) {
      std::vector<Trial> trials(std::min(kAtOnce, begin + count - first));
      for (uint32_t i = 0; i < trials.size(); ++i) {
        prepare(trials[i], first + i);
        trials[i].ticket = submit(service, trials[i].request, trials[i].listener);
      }
      for (uint32_t i = 0; i < trials.size(); ++i) {
        trials[i].listener.wait();
        SCOPED_TRACE("trial " + std::to_string(first + i) + ", " + write_json(trials[i].schema));
        check(trials[i]);
        if (HasFatalFailure()) return;
      }
    }
  }
};

TEST_F(ServiceSchemaTest, OutputsAreValid) {
  const std::unique_ptr<Service> service = make_engine_service(model(), options());
  run_trials(*service, 0, 40);
}

TEST_F(ServiceSchemaTest, EveryOneOfAThousandOutputsIsValidSlow) {
  const std::unique_ptr<Service> service = make_engine_service(model(), options());
  run_trials(*service, 1000, 1000);
}

TEST_F(ServiceSchemaTest, DraftedOutputsAreValid) {
  const service_testing::RoomyCheckpoint checkpoint;
  EngineServiceOptions drafted = options();
  drafted.scheduler.drafts.mode = DraftOptions::Mode::kFixed;
  drafted.scheduler.drafts.length = 3;
  const std::unique_ptr<Service> service =
      make_engine_service(service_testing::load_roomy_model(checkpoint, true), drafted);
  run_trials(*service, 3000, 40);
}

}  // namespace
}  // namespace tidepool
