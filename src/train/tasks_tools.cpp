// Requests to small tools in the released call format. A request is a tool and the values of its parameters; what is
// held out is told by them together, so each value and each wording is known and the combination is not.
#include <fmt/format.h>

#include <array>
#include <map>
#include <string>
#include <vector>

#include "base/check.h"
#include "text/json.h"
#include "train/random_stream.h"
#include "train/tasks.h"
#include "train/tasks_tools_domains.h"

namespace tidepool {
namespace {

constexpr uint64_t kCallsHeldoutOneIn = 8;
/// One request in so many is two.
constexpr uint64_t kTwoRequestsOneIn = 4;
/// Turns of a dialogue that is learnt from, each with one request or two.
constexpr uint64_t kRequestsMax = 3;

/// The values of slots, each drawn when it is first asked for.
class Slots {
 public:
  explicit Slots(RandomStream& random) : random_(random) {}

  const std::string& value(std::string_view name) {
    const auto found = values_.find(std::string(name));
    if (found != values_.end()) return found->second;
    const SlotSpec* slot = find_slot(name);
    TIDEPOOL_CHECK(slot != nullptr, "a tool's text has a slot that is not in the table");
    std::string drawn =
        slot->values.empty()
            ? fmt::format("{}", slot->low + slot->step * random_.between(0, (slot->high - slot->low) / slot->step))
            : std::string(random_.pick(slot->values));
    return values_.emplace(name, std::move(drawn)).first->second;
  }

  /// `text` with values in place of its slots.
  std::string fill(std::string_view text) {
    std::string filled;
    while (true) {
      const size_t begin = text.find('<');
      if (begin == std::string_view::npos) return filled.append(text);
      const size_t end = text.find('>', begin);
      filled.append(text.substr(0, begin)).append(value(text.substr(begin + 1, end - begin - 1)));
      text.remove_prefix(end + 1);
    }
  }

 private:
  RandomStream& random_;
  std::map<std::string, std::string> values_;
};

/// A request that one call answers.
struct Request {
  const ToolSpec* tool = nullptr;
  std::string text;
  Json arguments;
  std::string result;
  std::string reply;
};

Json argument(const ToolParameterSpec& parameter, const std::string& value) {
  if (parameter.type == "integer") return Json::make_number(value);
  return Json::make_string(value);
}

Request draw_request(const ToolSpec& tool, Split split, RandomStream& random) {
  while (true) {
    Slots slots(random);
    std::string identity(tool.name);
    Request request;
    request.tool = &tool;
    request.arguments = Json::make_object();
    for (const ToolParameterSpec& parameter : tool.parameters) {
      const std::string& value = slots.value(parameter.name);
      identity += "|" + value;
      request.arguments.set(parameter.name, argument(parameter, value));
    }
    // A tool with one parameter has few requests: there, what is held out is a value with a wording.
    const std::string_view wording = random.pick(tool.requests);
    if (tool.parameters.size() == 1) identity += fmt::format("|{}", wording);
    if ((stable_hash(identity) % kCallsHeldoutOneIn == 0) != (split == Split::kHeldout)) continue;
    request.text = slots.fill(wording);
    request.result = slots.fill(tool.result);
    request.reply = slots.fill(tool.reply);
    return request;
  }
}

ToolDefinition definition(const ToolSpec& tool) {
  Json properties = Json::make_object();
  Json::Array required;
  required.reserve(tool.parameters.size());
  for (const ToolParameterSpec& parameter : tool.parameters) {
    Json property = Json::make_object();
    property.set("type", Json::make_string(std::string(parameter.type)));
    property.set("description", Json::make_string(std::string(parameter.description)));
    properties.set(parameter.name, std::move(property));
    required.push_back(Json::make_string(std::string(parameter.name)));
  }
  ToolDefinition definition;
  definition.name = tool.name;
  definition.description = tool.description;
  definition.parameters.set("type", Json::make_string("object"));
  definition.parameters.set("properties", std::move(properties));
  definition.parameters.set("required", Json::make_array(std::move(required)));
  return definition;
}

class ToolsTask final : public Task {
 public:
  explicit ToolsTask(const TaskOptions& options) : calls_only_(options.questions_per_context != 0) {}

  [[nodiscard]] Dialogue make(const TaskItem& item) const override {
    RandomStream random(item.seed, fmt::format("tools/{}", split_name(item.split)), item.index);
    Dialogue dialogue;
    dialogue.request.is_thinking = random.one_in(2);
    constexpr std::array<int, 4> kEfforts = {10, 50, 75, 100};
    dialogue.request.effort = random.pick(std::span(kEfforts));
    if (random.one_in(3)) {
      dialogue.request.messages.push_back(text_message(ChatRole::kSystem, "You are a helpful assistant."));
    }
    const std::vector<const ToolSpec*> offered = offer(random, dialogue.request);
    if (calls_only_) {
      ask(item.split, offered, random, dialogue);
      return dialogue;
    }
    constexpr uint64_t kSmallTalkOneIn = 8;
    if (item.split == Split::kTrain && random.one_in(kSmallTalkOneIn)) {
      make_small_talk(random, dialogue);
      return dialogue;
    }
    // Definitions are most of a dialogue's tokens, so several requests share them.
    for (uint64_t earlier = random.below(kRequestsMax); earlier > 0; --earlier) {
      const Asked asked = ask(item.split, offered, random, dialogue);
      report(asked, dialogue);
      dialogue.request.messages.push_back(std::move(dialogue.answer));
    }
    const Asked asked = ask(item.split, offered, random, dialogue);
    if (random.one_in(2)) report(asked, dialogue);
    return dialogue;
  }

 private:
  /// The tools of one domain and, sometimes, of a second one.
  static std::vector<const ToolSpec*> offer(RandomStream& random, ChatRequest& request) {
    const std::span<const ToolSpec> tools = tool_specs();
    const std::string_view domain = random.pick(tools).domain;
    const std::string_view other = random.one_in(3) ? random.pick(tools).domain : domain;
    std::vector<const ToolSpec*> offered;
    for (const ToolSpec& tool : tools) {
      if (tool.domain != domain && tool.domain != other) continue;
      offered.push_back(&tool);
      request.tools.push_back(definition(tool));
    }
    return offered;
  }

  using Asked = std::vector<Request>;

  /// The user asks for one call or two; the answer makes them.
  static Asked ask(Split split, const std::vector<const ToolSpec*>& offered, RandomStream& random, Dialogue& dialogue) {
    Asked asked;
    const size_t count = random.one_in(kTwoRequestsOneIn) ? 2 : 1;
    asked.reserve(count);
    for (size_t i = 0; i < count; ++i)
      asked.push_back(draw_request(*random.pick(std::span(offered)), split, random));
    ChatMessage call;
    call.role = ChatRole::kAssistant;
    std::string text;
    for (const Request& request : asked) {
      text += text.empty() ? request.text : " Also: " + request.text;
      call.reasoning += fmt::format("{}{}", call.reasoning.empty() ? "Call " : " and ", request.tool->name);
      call.tool_calls.push_back({.id = fmt::format("call_{}", call.tool_calls.size()),
                                 .name = std::string(request.tool->name),
                                 .space = {},
                                 .arguments = request.arguments});
    }
    call.reasoning += ".";
    dialogue.request.messages.push_back(text_message(ChatRole::kUser, std::move(text)));
    dialogue.answer = std::move(call);
    dialogue.check = Dialogue::Check::kCalls;
    dialogue.group = count == 1 ? "one_call" : "two_calls";
    return asked;
  }

  /// The tools answer the calls, and the answer says what came back.
  static void report(const Asked& asked, Dialogue& dialogue) {
    dialogue.request.messages.push_back(std::move(dialogue.answer));
    std::string reply;
    for (size_t i = 0; i < asked.size(); ++i) {
      ChatMessage result = text_message(ChatRole::kTool, asked[i].result);
      result.tool_call_id = fmt::format("call_{}", i);
      dialogue.request.messages.push_back(std::move(result));
      reply += (i == 0 ? "" : " ") + asked[i].reply;
    }
    dialogue.answer = text_message(ChatRole::kAssistant, std::move(reply));
    dialogue.answer.reasoning = "Say what came back.";
    dialogue.check = Dialogue::Check::kExact;
    dialogue.group.clear();
  }

  /// Tools are offered and none is wanted. In training only: there are too few of these to hold any out.
  static void make_small_talk(RandomStream& random, Dialogue& dialogue) {
    struct SmallTalk {
      std::string_view said;
      std::string_view answer;
    };
    constexpr std::array<SmallTalk, 8> kSmallTalk = {{{"Thank you!", "You are welcome."},
                                                      {"Hello!", "Hello! What can I do for you?"},
                                                      {"Good morning.", "Good morning! What can I do for you?"},
                                                      {"That is all.", "All right."},
                                                      {"Goodbye.", "Goodbye!"},
                                                      {"How are you?", "I am fine. What can I do for you?"},
                                                      {"Thanks a lot.", "You are welcome."},
                                                      {"Never mind.", "All right."}}};
    const SmallTalk& exchange = random.pick(std::span(kSmallTalk));
    dialogue.request.messages.push_back(text_message(ChatRole::kUser, std::string(exchange.said)));
    dialogue.answer = text_message(ChatRole::kAssistant, std::string(exchange.answer));
    dialogue.answer.reasoning = "No call is needed.";
  }

  bool calls_only_;
};

}  // namespace

std::unique_ptr<Task> make_tools_task(const TaskOptions& options) {
  return std::make_unique<ToolsTask>(options);
}

}  // namespace tidepool
