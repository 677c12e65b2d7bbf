#include "train/tasks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "base/error.h"
#include "text/completion_parser.h"
#include "text/strict_parser.h"
#include "train/bpe_trainer.h"
#include "train/tasks_help_facts.h"
#include "train/tasks_tools_domains.h"
#include "train/tasks_words.h"

namespace tidepool {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Bytes and control tokens alone.
const Tokenizer& byte_tokenizer() {
  static const Tokenizer tokenizer =
      Tokenizer::parse(write_tokenizer_json(train_bpe({}, {.token_count = 256})), "bytes");
  return tokenizer;
}

const Corpus& small_corpus() {
  static const Corpus corpus = [] {
    CorpusSource source{.name = "tales", .train = {}, .heldout = {}};
    for (int i = 0; i < 20; ++i) {
      const std::string line = "Line of tale " + std::to_string(i) + ", plain and short.\n\n";
      source.train.push_back({"tales/" + std::to_string(i), line + line});
      source.heldout.push_back({"tales/heldout" + std::to_string(i), "Held " + line + "Held " + line});
    }
    return Corpus({std::move(source)});
  }();
  return corpus;
}

/// The same, and eyes: cells of 42 pixels.
SampleEncoding encoding() {
  return {byte_tokenizer(),
          ImagePlanConfig{.patch = 14, .downsample = 3, .tokens_max = 1024, .pixels_min = int64_t{84} * 84}};
}

std::unique_ptr<Task> make(std::string_view name, const TaskOptions& options = {}) {
  return make_task(name, options, byte_tokenizer(), &small_corpus());
}

std::string text_of(const ChatMessage& message) {
  std::string text;
  for (const ContentBlock& block : message.content)
    text += block.text;
  return text;
}

std::string last_text(const Dialogue& dialogue) {
  return text_of(dialogue.request.messages.back());
}

std::string all_text(const Dialogue& dialogue) {
  std::string text;
  for (const ChatMessage& message : dialogue.request.messages)
    text += text_of(message) + "\n";
  for (const ContentBlock& block : dialogue.request.messages.front().content) {
    if (block.kind == ContentBlock::Kind::kImage) text += write_json(block.image);
  }
  return text;
}

Completion right_output(const Dialogue& dialogue) {
  const CompletionParserOptions options{
      .start = dialogue.request.is_thinking ? OutputStart::kReasoning : OutputStart::kContent,
      .has_tools = !dialogue.request.tools.empty()};
  return parse_completion(answer_text(dialogue), options);
}

class EveryTask : public ::testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(Tasks, EveryTask, ::testing::ValuesIn(task_names().begin(), task_names().end()),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(EveryTask, TheSameItemIsTheSameDialogue) {
  const auto task = make(GetParam());
  const auto again = make(GetParam());
  for (uint64_t i = 0; i < 20; ++i) {
    const TaskItem item{Split::kTrain, 5, i};
    EXPECT_EQ(all_text(task->make(item)), all_text(again->make(item)));
    EXPECT_EQ(make_sample(encoding(), task->make(item)).ids, make_sample(encoding(), again->make(item)).ids);
  }
}

TEST_P(EveryTask, SeedsAndIndicesGiveOtherItems) {
  const auto task = make(GetParam());
  std::set<std::string> seen;
  for (uint64_t i = 0; i < 20; ++i) {
    for (const uint64_t seed : {1U, 2U}) {
      const Dialogue dialogue = task->make({Split::kTrain, seed, i});
      seen.insert(all_text(dialogue) + answer_text(dialogue));
    }
  }
  EXPECT_GT(seen.size(), 35);
}

TEST_P(EveryTask, ItsOwnAnswerIsRightAndWellFormed) {
  for (const Split split : {Split::kTrain, Split::kHeldout}) {
    const auto task = make(GetParam());
    for (uint64_t i = 0; i < 100; ++i) {
      const Dialogue dialogue = task->make({split, 3, i});
      const AnswerScore score = score_answer(dialogue, right_output(dialogue), true);
      EXPECT_TRUE(score.is_right) << answer_text(dialogue);
      EXPECT_TRUE(score.is_well_formed) << answer_text(dialogue);
      EXPECT_FALSE(score_answer(dialogue, right_output(dialogue), false).is_right) << "cut off";
    }
  }
}

TEST_P(EveryTask, TheAnswerOfAnotherItemIsWrong) {
  const auto task = make(GetParam());
  int compared = 0;
  for (uint64_t i = 0; i < 50; ++i) {
    const Dialogue dialogue = task->make({Split::kHeldout, 4, i});
    const Dialogue other = task->make({Split::kHeldout, 4, i + 1});
    const bool differs = text_of(dialogue.answer) != text_of(other.answer) || dialogue.key != other.key ||
                         dialogue.answer.tool_calls.size() != other.answer.tool_calls.size() ||
                         answer_text(dialogue) != answer_text(other);
    if (!differs || (dialogue.check == Dialogue::Check::kOption && dialogue.key == other.key) ||
        (dialogue.check == Dialogue::Check::kExact && text_of(dialogue.answer) == text_of(other.answer))) {
      continue;
    }
    ++compared;
    EXPECT_FALSE(score_answer(dialogue, right_output(other), true).is_right) << answer_text(other);
  }
  EXPECT_GT(compared, 20);
}

TEST_P(EveryTask, NoHeldoutAnswerIsAskedForInTraining) {
  const auto task = make(GetParam());
  std::set<std::string> training;
  for (uint64_t i = 0; i < 400; ++i)
    training.insert(all_text(task->make({Split::kTrain, 1, i})));
  for (uint64_t i = 0; i < 400; ++i) {
    const std::string text = all_text(task->make({Split::kHeldout, 1, i}));
    EXPECT_FALSE(training.contains(text)) << text;
  }
}

TEST_P(EveryTask, ASampleIsThePromptAndThenTheAnswer) {
  const auto task = make(GetParam());
  for (uint64_t i = 0; i < 20; ++i) {
    const Dialogue dialogue = task->make({Split::kTrain, 2, i});
    const Sample sample = make_sample(encoding(), dialogue);
    const std::vector<int32_t> prompt = make_prompt(encoding(), dialogue);
    ASSERT_LT(prompt.size(), sample.ids.size());
    EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), sample.ids.begin()));
    const std::vector<int32_t> answer(sample.ids.begin() + static_cast<ptrdiff_t>(prompt.size()), sample.ids.end() - 1);
    EXPECT_EQ(byte_tokenizer().decode(answer), answer_text(dialogue));
    EXPECT_EQ(byte_tokenizer().decode({&sample.ids.back(), 1}), "<｜end▁of▁sentence｜>");
    // From the token before the answer to the one before the end, everything is learnt; behind the end nothing is.
    for (size_t t = prompt.size() - 1; t + 1 < sample.ids.size(); ++t)
      EXPECT_EQ(sample.weights[t], 1) << t;
    EXPECT_EQ(sample.weights.back(), 0);
  }
}

TEST(Tasks, AnUnknownNameNamesThoseThereAre) {
  try {
    (void)make("recal");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("recall, needle"));
  }
}

TEST(Tasks, LengthsAndEffortsOutOfRangeAreRefused) {
  EXPECT_THROW((void)make("recall", {.length_min = 10}), Error);
  EXPECT_THROW((void)make("recall", {.length_min = 500, .length_max = 400}), Error);
  EXPECT_THROW((void)make("recall", {.words = 15}), Error);
  EXPECT_THROW((void)make("recall", {.words = task_words().size() + 1}), Error);
  EXPECT_THROW((void)make("arithmetic", {.effort = 101}), Error);
  EXPECT_THROW((void)make_task("needle", {}, byte_tokenizer(), nullptr), Error);
}

TEST(PicturesTask, TheSpanStandsWhereTheRequestHasIt) {
  const auto task = make("pictures");
  const int32_t placeholder = byte_tokenizer().find_added_token("<｜deepseek_image｜>").value();
  for (uint64_t i = 0; i < 20; ++i) {
    const Sample sample = make_sample(encoding(), task->make({Split::kTrain, 1, i}));
    ASSERT_EQ(sample.pictures.size(), 1U);
    // Start, two rows of two cells and an end, end.
    ASSERT_EQ(sample.pictures[0].image->plan.tokens(), 8);
    for (size_t t = 0; t < sample.ids.size(); ++t) {
      const bool is_image = t >= sample.pictures[0].begin && t < sample.pictures[0].begin + 8;
      EXPECT_EQ(sample.ids[t] == placeholder, is_image) << t;
      EXPECT_FALSE(is_image && sample.weights[t] != 0) << t;
    }
  }
}

TEST(PicturesTask, AModelWithoutEyesIsRefused) {
  EXPECT_THROW((void)make_sample(byte_tokenizer(), make("pictures")->make({Split::kTrain, 1, 0})), Error);
}

TEST(PicturesTask, EveryQuestionIsAskedAndTheGroundIsThatOfTheCorner) {
  const auto task = make("pictures", {.questions_per_context = 1});
  const std::map<std::string, std::array<int, 3>> grounds = {{"red", {220, 40, 40}}, {"white", {240, 240, 240}}};
  std::map<std::string, int> groups;
  int compared = 0;
  for (uint64_t i = 0; i < 400; ++i) {
    const Dialogue dialogue = task->make({Split::kHeldout, 1, i});
    ++groups[dialogue.group];
    const auto ground = grounds.find(text_of(dialogue.answer));
    if (dialogue.group != "ground" || ground == grounds.end()) continue;
    const Sample sample = make_sample(encoding(), dialogue);
    for (size_t c = 0; c < 3; ++c)
      EXPECT_NEAR(sample.pictures[0].image->canvas.pixels[c], ground->second[c], 15);
    ++compared;
  }
  EXPECT_EQ(groups.size(), 6U);
  for (const auto& [group, count] : groups)
    EXPECT_GT(count, 20) << group;
  EXPECT_GT(compared, 5);
}

TEST(PicturesTask, ShapesDoNotCoverOneAnother) {
  // A picture has one colour more than shapes, and a shape some hundred pixels at least.
  const auto task = make("pictures", {.questions_per_context = 1});
  for (uint64_t i = 0; i < 200; ++i) {
    const Dialogue dialogue = task->make({Split::kTrain, 1, i});
    if (dialogue.group != "count") continue;
    const Sample sample = make_sample(encoding(), dialogue);
    std::map<std::array<uint8_t, 3>, int> pixels;
    const std::vector<uint8_t>& all = sample.pictures[0].image->canvas.pixels;
    for (size_t p = 0; p < all.size(); p += 3)
      ++pixels[{all[p], all[p + 1], all[p + 2]}];
    EXPECT_EQ(pixels.size(), text_of(dialogue.answer) == "one" ? 2U : 3U);
    for (const auto& [colour, count] : pixels)
      EXPECT_GT(count, 100);
  }
}

TEST(HelpTask, EverySecondQuestionThatIsLearntLosesWords) {
  const auto words = [](const Dialogue& dialogue) {
    const std::string text = last_text(dialogue);
    return static_cast<size_t>(std::count(text.begin(), text.end(), ' ')) + 1;
  };
  const auto whole = make("help");
  const auto dropping = make("help", {.word_dropout = 0.5});
  size_t shorter = 0;
  for (uint64_t i = 0; i < 400; ++i) {
    const Dialogue kept = whole->make({Split::kTrain, 1, i});
    const Dialogue dropped = dropping->make({Split::kTrain, 1, i});
    EXPECT_EQ(text_of(dropped.answer), text_of(kept.answer));
    EXPECT_LE(words(dropped), words(kept));
    shorter += words(dropped) < words(kept) ? 1 : 0;
    EXPECT_EQ(last_text(dropping->make({Split::kHeldout, 1, i})), last_text(whole->make({Split::kHeldout, 1, i})));
  }
  EXPECT_GT(shorter, 140);  // of 400, less one in 16 that is no question
  EXPECT_LT(shorter, 240);
}

TEST(RecallTask, EveryQuestionHasItsPairInTheList) {
  const auto task = make("recall", {.length_min = 600, .length_max = 2000});
  for (uint64_t i = 0; i < 20; ++i) {
    const Dialogue dialogue = task->make({Split::kTrain, 1, i});
    const std::string list = text_of(dialogue.request.messages.front());
    std::vector<ChatMessage> turns = dialogue.request.messages;
    turns.push_back(dialogue.answer);
    for (size_t t = 0; t < turns.size(); t += 2) {
      std::string question = text_of(turns[t]);
      if (t == 0) question = question.substr(question.find("\n\n") + 2);
      const std::string key = question.substr(0, question.size() - 1);  // before "?"
      EXPECT_THAT(text_of(turns[t + 1]), StartsWith(key + " "));
      EXPECT_THAT("\n" + list, HasSubstr("\n" + text_of(turns[t + 1]) + "\n"));
    }
  }
}

TEST(RecallTask, LengthsAreThoseAskedFor) {
  for (const size_t length : {256U, 1024U, 4096U}) {
    const auto task = make("recall", {.length_min = length, .length_max = length});
    for (uint64_t i = 0; i < 5; ++i) {
      const size_t ids = make_sample(byte_tokenizer(), task->make({Split::kTrain, 1, i})).ids.size();
      EXPECT_LE(ids, length);
      EXPECT_GE(ids, length * 3 / 4);
    }
  }
}

TEST(RecallTask, LearnsManyAnswersFromOneList) {
  const auto task = make("recall", {.length_min = 4096, .length_max = 4096});
  const Dialogue dialogue = task->make({Split::kTrain, 1, 0});
  const Sample sample = make_sample(byte_tokenizer(), dialogue);
  const auto learnt = std::count(sample.weights.begin(), sample.weights.end(), 1.0F);
  size_t wanted = text_of(dialogue.answer).size() + 1;  // a byte a token, and the end of sentence
  for (size_t t = 1; t < dialogue.request.messages.size(); t += 2)
    wanted += text_of(dialogue.request.messages[t]).size() + 1;
  EXPECT_GT(dialogue.request.messages.size(), 20);
  EXPECT_EQ(static_cast<size_t>(learnt), wanted);
}

/// The lines of a list that are pairs, not digits.
std::vector<std::string> pairs_of(const Dialogue& dialogue) {
  std::vector<std::string> found;
  std::istringstream list(text_of(dialogue.request.messages.front()));
  for (std::string line; std::getline(list, line) && !line.empty();) {
    if (std::isalpha(static_cast<unsigned char>(line.front())) != 0) found.push_back(line);
  }
  return found;
}

TEST(RecallTask, PairsOfTheTwoSplitsAreDifferent) {
  const auto task = make("recall", {.length_min = 4096, .length_max = 4096});
  const auto pairs = [&](Split split) {
    std::set<std::string> found;
    for (uint64_t i = 0; i < 60; ++i)
      std::ranges::copy(pairs_of(task->make({split, 1, i})), std::inserter(found, found.end()));
    return found;
  };
  const std::set<std::string> train = pairs(Split::kTrain);
  const std::set<std::string> heldout = pairs(Split::kHeldout);
  EXPECT_GT(heldout.size(), 500);
  for (const std::string& pair : heldout)
    EXPECT_FALSE(train.contains(pair)) << pair;
}

TEST(RecallTask, WordsOfAListCanBeFew) {
  constexpr size_t kWords = 16;
  const auto task = make("recall", {.length_min = 4096, .length_max = 4096, .words = kWords});
  std::set<std::string> words;
  for (uint64_t i = 0; i < 20; ++i) {
    const std::vector<std::string> pairs = pairs_of(task->make({Split::kTrain, 1, i}));
    EXPECT_EQ(pairs.size(), kWords * 3 / 4);  // there is room for many times as many
    for (const std::string& pair : pairs) {
      words.insert(pair.substr(0, pair.find(' ')));
      words.insert(pair.substr(pair.find(' ') + 1));
    }
  }
  EXPECT_EQ(words.size(), kWords);
}

TEST(RecallTask, LinesOfDigitsFillWhatPairsLeave) {
  const auto task = make("recall", {.length_min = 4096, .length_max = 4096, .questions_per_context = 5});
  const Dialogue dialogue = task->make({Split::kHeldout, 1, 0});
  EXPECT_EQ(pairs_of(dialogue).size(), 96);
  EXPECT_THAT(text_of(dialogue.request.messages.front()), testing::ContainsRegex("\n[0-9] [0-9] "));
}

TEST(LookupTask, ItemsThatShareAContextDifferInTheQuestionAlone) {
  for (const std::string_view name : {"recall", "needle"}) {
    const auto task = make(name, {.length_min = 2048, .length_max = 2048, .questions_per_context = 5});
    const std::string first = last_text(task->make({Split::kHeldout, 1, 5}));
    const std::string second = last_text(task->make({Split::kHeldout, 1, 6}));
    const std::string next = last_text(task->make({Split::kHeldout, 1, 10}));
    const size_t list = first.rfind("\n\n");
    EXPECT_EQ(first.substr(0, list), second.substr(0, list));
    EXPECT_NE(first.substr(list), second.substr(list));
    EXPECT_NE(first.substr(0, 100), next.substr(0, 100));
  }
}

TEST(NeedleTask, TheLineStandsInTheText) {
  const auto task = make("needle", {.length_min = 1024, .length_max = 4096});
  for (uint64_t i = 0; i < 20; ++i) {
    const Dialogue dialogue = task->make({Split::kHeldout, 1, i});
    const std::string question = last_text(dialogue);
    const size_t begin = question.rfind('\n') + 1;
    const std::string key = question.substr(begin, question.size() - 1 - begin);
    const std::string text = text_of(dialogue.request.messages.front());
    EXPECT_THAT(text_of(dialogue.answer), StartsWith(key + " "));
    EXPECT_THAT("\n" + text, HasSubstr("\n" + text_of(dialogue.answer) + "\n"));
    EXPECT_THAT(text, HasSubstr("Held Line of tale"));
  }
}

TEST(CopyTask, TheAnswerIsTheText) {
  const Dialogue dialogue = make("copy")->make({Split::kTrain, 1, 0});
  EXPECT_EQ(last_text(dialogue), "Repeat this text:\n\n" + text_of(dialogue.answer));
}

TEST(ArithmeticTask, StepsGrowWithTheEffortAndTheProblemStays) {
  size_t none = 0;
  size_t results = 0;
  size_t digits = 0;
  for (uint64_t i = 0; i < 200; ++i) {
    const TaskItem item{Split::kHeldout, 1, i};
    const Dialogue low = make("arithmetic", {.effort = 10})->make(item);
    const Dialogue middle = make("arithmetic", {.effort = 50})->make(item);
    const Dialogue high = make("arithmetic", {.effort = 100})->make(item);
    EXPECT_EQ(text_of(low.answer), text_of(high.answer));
    EXPECT_EQ(last_text(low), last_text(middle));
    EXPECT_THAT(encode_chat_request(low.request).prompt.text, HasSubstr("Reasoning Effort: 10 "));
    none += low.answer.reasoning.size();
    results += middle.answer.reasoning.size();
    digits += high.answer.reasoning.size();
  }
  EXPECT_EQ(none, 0);
  EXPECT_GT(results, 200 * 10);
  EXPECT_GT(digits, 2 * results);
}

/// a+b-c from the left, or a*b.
int64_t value_of(const std::string& term) {
  std::istringstream in(term);
  int64_t value = 0;
  in >> value;
  for (char sign = 0; in >> sign;) {
    int64_t next = 0;
    in >> next;
    value = sign == '+' ? value + next : sign == '-' ? value - next : value * next;
  }
  return value;
}

TEST(ArithmeticTask, EveryStepIsTrue) {
  for (uint64_t i = 0; i < 500; ++i) {
    const Dialogue dialogue = make("arithmetic", {.effort = 100})->make({Split::kTrain, 1, i});
    const std::string question = last_text(dialogue);
    const size_t begin = question.find_first_of("0123456789");
    const std::string problem = question.substr(begin, question.find_last_of("0123456789") + 1 - begin);
    EXPECT_EQ(std::to_string(value_of(problem)), text_of(dialogue.answer)) << problem;
    std::istringstream lines(dialogue.answer.reasoning);
    for (std::string line; std::getline(lines, line);) {
      const std::string term = line.substr(0, line.find_first_of(":="));
      EXPECT_EQ(std::to_string(value_of(term)), line.substr(line.find_last_of(" =") + 1)) << line;
      if (line.find(": ") == std::string::npos) continue;
      std::istringstream steps(line.substr(line.find(": ") + 2, line.find(';') - line.find(": ") - 2));
      for (std::string step; std::getline(steps >> std::ws, step, ',');) {
        EXPECT_EQ(std::to_string(value_of(step.substr(0, step.find('=')))), step.substr(step.find('=') + 1)) << line;
      }
    }
  }
}

TEST(ToolsTask, AnswersAreWhatTheStrictParserReads) {
  const auto task = make("tools", {.questions_per_context = 1});
  int two = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    const Dialogue dialogue = task->make({Split::kHeldout, 1, i});
    const ThinkingMode mode = dialogue.request.is_thinking ? ThinkingMode::kThinking : ThinkingMode::kChat;
    const ParsedMessage message = parse_completion_strictly(answer_text(dialogue) + "<｜end▁of▁sentence｜>", mode);
    ASSERT_EQ(message.tool_calls.size(), dialogue.answer.tool_calls.size());
    for (size_t c = 0; c < message.tool_calls.size(); ++c) {
      EXPECT_EQ(message.tool_calls[c].name, dialogue.answer.tool_calls[c].name);
      EXPECT_EQ(parse_json(message.tool_calls[c].arguments), dialogue.answer.tool_calls[c].arguments);
    }
    two += message.tool_calls.size() == 2 ? 1 : 0;
  }
  EXPECT_GT(two, 10);
}

TEST(ToolsTask, HeldoutRequestsAreNotInTraining) {
  std::set<std::string> identities[2];
  std::set<size_t> requests;  // of a dialogue that is learnt from
  for (const Split split : {Split::kTrain, Split::kHeldout}) {
    const bool is_train = split == Split::kTrain;
    const auto task = make("tools", {.questions_per_context = is_train ? 0U : 1U});
    for (uint64_t i = 0; i < 3000; ++i) {
      Dialogue dialogue = task->make({split, 1, i});
      std::vector<ChatMessage>& messages = dialogue.request.messages;
      messages.push_back(std::move(dialogue.answer));
      if (is_train)
        requests.insert(static_cast<size_t>(std::ranges::count(messages, ChatRole::kUser, &ChatMessage::role)));
      for (size_t m = 1; m < messages.size(); ++m) {
        if (messages[m].tool_calls.size() != 1) continue;
        const ToolCall& call = messages[m].tool_calls[0];
        const bool has_one = call.arguments.as_object().size() == 1;
        identities[is_train ? 0 : 1].insert(call.name + write_json(call.arguments) +
                                            (has_one ? text_of(messages[m - 1]) : ""));
      }
    }
  }
  EXPECT_EQ(requests, (std::set<size_t>{1, 2, 3}));
  EXPECT_GT(identities[1].size(), 200);
  for (const std::string& identity : identities[1])
    EXPECT_FALSE(identities[0].contains(identity)) << identity;
}

TEST(ToolsTask, EveryTextHasSlotsOfTheTableAndEveryParameterIsSaid) {
  for (const ToolSpec& tool : tool_specs()) {
    for (const ToolParameterSpec& parameter : tool.parameters) {
      EXPECT_NE(find_slot(parameter.name), nullptr) << parameter.name;
      for (const std::string_view request : tool.requests)
        EXPECT_THAT(std::string(request), HasSubstr("<" + std::string(parameter.name) + ">"));
    }
  }
}

TEST(ToolsTask, WrongCallsAreTold) {
  const auto task = make("tools", {.questions_per_context = 1});
  const Dialogue dialogue = task->make({Split::kHeldout, 1, 0});
  const Completion right = right_output(dialogue);
  Completion other_name = right;
  other_name.calls[0].name = "no_such_tool";
  EXPECT_FALSE(score_answer(dialogue, other_name, true).is_well_formed);
  Completion open = right;
  open.calls[0].is_complete = false;
  EXPECT_FALSE(score_answer(dialogue, open, true).is_well_formed);
  Completion broken = right;
  broken.calls[0].arguments.pop_back();
  EXPECT_FALSE(score_answer(dialogue, broken, true).is_well_formed);
  Completion extra = right;
  extra.calls[0].arguments.insert(1, "\"speed\": 3, ");
  EXPECT_FALSE(score_answer(dialogue, extra, true).is_well_formed);
  Completion missing = right;
  missing.calls[0].arguments = "{}";
  EXPECT_FALSE(score_answer(dialogue, missing, true).is_well_formed);
  Completion chatty = right;
  chatty.content = "Sure!";
  EXPECT_TRUE(score_answer(dialogue, chatty, true).is_well_formed);
  EXPECT_FALSE(score_answer(dialogue, chatty, true).is_right);
  Completion twice = right;
  twice.calls.push_back(right.calls[0]);
  EXPECT_FALSE(score_answer(dialogue, twice, true).is_right);
}

TEST(HelpTask, EveryFactStandsInTheDocs) {
  std::string docs;
  for (const char* page : {"/docs/commands.md", "/docs/api.md"}) {
    std::ifstream file(std::string(TIDEPOOL_SOURCE_DIR) + page);
    ASSERT_TRUE(file) << page;
    docs.append(std::istreambuf_iterator<char>(file), {});
  }
  EXPECT_GE(help_facts().size(), 60);
  std::set<std::string_view> wishes;
  for (const HelpFact& fact : help_facts()) {
    EXPECT_THAT(docs, HasSubstr(std::string(fact.key)));
    for (const std::string_view wish : fact.wishes)
      EXPECT_TRUE(wishes.insert(wish).second) << "asked for twice: " << wish;
  }
}

TEST(HelpTask, TheOptionThatIsNamedFirstCounts) {
  Dialogue dialogue;
  dialogue.check = Dialogue::Check::kOption;
  dialogue.key = "--kv-disk";
  const auto is_right = [&](std::string text) {
    Completion output;
    output.content = std::move(text);
    return score_answer(dialogue, output, true).is_right;
  };
  EXPECT_TRUE(is_right("Use --kv-disk 64GiB, beside --kv-dir."));
  EXPECT_FALSE(is_right("Use --kv-dir, then --kv-disk."));
  EXPECT_FALSE(is_right("Use --kv-disks."));
  EXPECT_FALSE(is_right("Use kv-disk."));
  EXPECT_FALSE(is_right(""));
  dialogue.key = "tidepool run";
  EXPECT_TRUE(is_right("With tidepool run MODEL -p TEXT."));
  dialogue.key = "/v1/messages";
  EXPECT_TRUE(is_right("POST to /v1/messages."));
  EXPECT_FALSE(is_right("POST to /v1/messages/count_tokens."));
}

TEST(TaskWords, AreSortedAndDifferent) {
  const auto words = task_words();
  for (size_t i = 1; i < words.size(); ++i)
    EXPECT_LT(words[i - 1], words[i]);
}

}  // namespace
}  // namespace tidepool
