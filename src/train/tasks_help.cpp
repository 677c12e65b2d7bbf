// Questions about Tidepool and the option, command or path that answers them.
#include <fmt/format.h>

#include <array>
#include <span>
#include <sstream>
#include <string>
#include <utility>

#include "train/random_stream.h"
#include "train/tasks.h"
#include "train/tasks_help_facts.h"

namespace tidepool {
namespace {

constexpr std::array<std::string_view, 75> kFrames = {
    "How do I {}?",
    "How can I {}?",
    "How could we {}?",
    "How would I {}?",
    "How does one {}?",
    "How to {}?",
    "I want to {}.",
    "I want to {}. How?",
    "I need to {}.",
    "I would like to {}. How?",
    "I am trying to {}. What do I type?",
    "I wonder how to {}.",
    "I have been asked to {}.",
    "We want to {}. What do we need?",
    "We have to {}, what helps?",
    "My task is to {}.",
    "What do I have to do to {}?",
    "What is the right way to {}?",
    "What do I need to {}?",
    "What helps me to {}?",
    "What do people use to {}?",
    "Which option do I need to {}?",
    "Which command or option lets me {}?",
    "Which setting is there to {}?",
    "Is there a way to {}?",
    "Is it possible to {}?",
    "Is there something to {}?",
    "Tell me how to {}.",
    "Show me how to {}.",
    "Explain to me how I can {}.",
    "Please explain how to {}.",
    "Please help me to {}.",
    "Can Tidepool {}?",
    "Can I {}?",
    "Could you tell me how to {}?",
    "Good morning, how do I {}?",
    "Hi! I want to {}.",
    "Thanks. And how can I {}?",
    "{}: how does that go?",
    "{}, please.",
    "My colleague wants to {}.",
    "I do not see how to {}.",
    "Hi there, could you tell me the way to {}?",
    "What should I type to {}?",
    "Which option lets me {}?",
    "how to {}",
    "To {}, what do I need to run?",
    "{}: how is that done?",
    "Can this program {}?",
    "Please show me the command to {}.",
    "I was asked to {} and have no idea where to start.",
    "Good morning! We need to {} before the release.",
    "Our team would like to {}; any advice?",
    "There must be a flag to {}, but I cannot find it.",
    "Nothing in the manual says how one can {}.",
    "Explain how someone would {}.",
    "Need to {} asap",
    "If I had to {}, which command would I use?",
    "I have tried everything and still can't {}.",
    "Would you mind helping me {}?",
    "A customer is asking us to {}. What do I tell her?",
    "Let me {}.",
    "Make it {}.",
    "My script has to {} every night. What is the right call?",
    "Hello, I'm new here and trying to {}.",
    "What is the easiest way to {} from the shell?",
    "Remind me, how did one {} again?",
    "It won't {} for me. Am I missing a setting?",
    "{} - can it do that?",
    "The boss says we must {}, so where is that documented?",
    "I'd be grateful for an example of how to {}.",
    "Why can't I {}?",
    "Looking for a switch that will {}, thanks.",
    "Suppose a user wishes to {}: what are the steps?",
    "I know it can {}, I just forgot the syntax.",
};
/// Asked in held-out questions only.
constexpr std::array<std::string_view, 4> kHeldoutFrames = {
    "Hello, I need to {}. What should I use?",
    "We would love to {}, but how?",
    "Do you know how one can {}?",
    "What must I write in order to {}?",
};

/// What people say beside questions; in training only, as there are too few to hold any out.
struct Exchange {
  std::string_view said;
  std::string_view answer;
};
constexpr std::array<Exchange, 10> kExchanges = {{
    {"Hello!", "Hello! I can tell you about the commands and options of Tidepool."},
    {"Hi", "Hello! I can tell you about the commands and options of Tidepool."},
    {"Good morning.", "Good morning! I can tell you about the commands and options of Tidepool."},
    {"Who are you?", "I am a very small language model. I know a little about Tidepool."},
    {"What are you?", "I am a very small language model. I know a little about Tidepool."},
    {"What can you do?", "I can tell you about the commands and options of Tidepool, add numbers and look things up."},
    {"What is Tidepool?", "Tidepool runs models like me on the processors of a machine."},
    {"Thank you!", "You are welcome."},
    {"Thanks a lot.", "You are welcome."},
    {"Goodbye.", "Goodbye!"},
}};
constexpr uint64_t kExchangeOneIn = 16;

/// What is left of a text whose words are each left out with that probability.
std::string drop_words(const std::string& text, double share, RandomStream& random) {
  constexpr uint64_t kDraws = 1 << 20;
  const auto limit = static_cast<uint64_t>(share * static_cast<double>(kDraws));
  std::istringstream words(text);
  std::string left;
  for (std::string word; words >> word;) {
    if (random.below(kDraws) < limit) continue;
    left += (left.empty() ? "" : " ") + word;
  }
  return left.empty() ? text : left;
}

class HelpTask final : public Task {
 public:
  explicit HelpTask(const TaskOptions& options) : options_(options) {}

  [[nodiscard]] Dialogue make(const TaskItem& item) const override {
    RandomStream random(item.seed, fmt::format("help/{}", split_name(item.split)), item.index);
    Dialogue dialogue;
    dialogue.request.is_thinking = random.one_in(2);
    constexpr std::array<int, 4> kEfforts = {10, 50, 75, 100};
    dialogue.request.effort = random.pick(std::span(kEfforts));
    if (item.split == Split::kTrain && random.one_in(kExchangeOneIn)) {
      const Exchange& exchange = random.pick(std::span(kExchanges));
      dialogue.request.messages.push_back(text_message(ChatRole::kUser, std::string(exchange.said)));
      dialogue.answer = text_message(ChatRole::kAssistant, std::string(exchange.answer));
      return dialogue;
    }
    const HelpFact& fact = random.pick(help_facts());
    std::string question = make_question(fact, item, random, dialogue.group);
    if (item.split == Split::kTrain && options_.word_dropout > 0 && random.one_in(2))
      question = drop_words(question, options_.word_dropout, random);
    dialogue.request.messages.push_back(text_message(ChatRole::kUser, std::move(question)));
    dialogue.answer = text_message(ChatRole::kAssistant, std::string(fact.answer));
    dialogue.answer.reasoning = fmt::format("This is about {}.", fact.topic);
    dialogue.check = Dialogue::Check::kOption;
    dialogue.key = fact.key;
    return dialogue;
  }

 private:
  /// Held out are known wishes in new frames and new wishes in known frames, in turn.
  static std::string make_question(const HelpFact& fact, const TaskItem& item, RandomStream& random,
                                   std::string& group) {
    const bool is_heldout = item.split == Split::kHeldout;
    const bool has_new_wish = is_heldout && item.index % 2 == 0;
    const auto known = std::span(fact.wishes).first(fact.wishes.size() - 1);
    const std::string_view wish = has_new_wish ? fact.wishes.back() : random.pick(known);
    const std::string_view frame =
        is_heldout && !has_new_wish ? random.pick(std::span(kHeldoutFrames)) : random.pick(std::span(kFrames));
    if (is_heldout) group = has_new_wish ? "new_wish" : "new_frame";
    std::string question = fmt::format(fmt::runtime(frame), wish);
    if (question[0] >= 'a' && question[0] <= 'z') question[0] = static_cast<char>(question[0] - 'a' + 'A');
    return question;
  }

  TaskOptions options_;
};

}  // namespace

std::unique_ptr<Task> make_help_task(const TaskOptions& options) {
  return std::make_unique<HelpTask>(options);
}

}  // namespace tidepool
