// Recall and needle: keys of two words, a value of one, told apart into splits by the key.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "base/error.h"
#include "train/random_stream.h"
#include "train/tasks.h"
#include "train/tasks_passages.h"
#include "train/tasks_words.h"

namespace tidepool {
namespace {

/// One key in so many is held out.
constexpr uint64_t kHeldoutOneIn = 4;
/// Tokens of the format around a list and its first question, and of an answer; generous.
constexpr size_t kFrameTokens = 40;
/// Passages that are tried for one that has any text.
constexpr int kTriesMax = 1000;
/// What questions and answers may take of a conversation that is learnt from.
constexpr double kQuestionShare = 0.4;

struct Pair {
  std::string key;
  std::string value;
};

/// Draws pairs whose keys are all different and of one split.
class PairSource {
 public:
  PairSource(Split split, RandomStream& random) : split_(split), random_(random) {}

  Pair next() {
    while (true) {
      const auto words = task_words();
      std::string key = fmt::format("{} {}", random_.pick(words), random_.pick(words));
      const bool is_heldout = stable_hash(key) % kHeldoutOneIn == 0;
      if (is_heldout != (split_ == Split::kHeldout) || !keys_.insert(key).second) continue;
      return {std::move(key), std::string(random_.pick(words))};
    }
  }

 private:
  Split split_;
  RandomStream& random_;
  std::set<std::string> keys_;
};

/// A length between the options' bounds, its logarithm uniform.
size_t draw_length(const TaskOptions& options, RandomStream& random) {
  const double share = static_cast<double>(random.below(1 << 20)) / (1 << 20);
  const double ratio = static_cast<double>(options.length_max) / static_cast<double>(options.length_min);
  return static_cast<size_t>(static_cast<double>(options.length_min) * std::pow(ratio, share));
}

/// A random order of [0, count).
std::vector<size_t> draw_order(size_t count, RandomStream& random) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = count; i > 1; --i)
    std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

/// What recall and needle have in common: a text to look things up in, pairs that are in it, and questions. The words
/// of the two differ.
struct Context {
  std::string text;  ///< up to the first question
  std::vector<Pair> pairs;
};

class LookupTask : public Task {
 public:
  LookupTask(std::string_view name, const TaskOptions& options, const Tokenizer& tokenizer)
      : name_(name), options_(options), tokenizer_(tokenizer) {}

  [[nodiscard]] Dialogue make(const TaskItem& item) const final {
    const size_t sharing = options_.questions_per_context;
    const uint64_t context_index = sharing == 0 ? item.index : item.index / sharing;
    RandomStream random(item.seed, fmt::format("{}/{}", name_, split_name(item.split)), context_index);
    const size_t tokens = draw_length(options_, random);
    const size_t room = tokens > 2 * kFrameTokens ? tokens - kFrameTokens : kFrameTokens;
    const auto list_room = static_cast<size_t>(static_cast<double>(room) * (sharing == 0 ? 1 - kQuestionShare : 1));
    const Context context = make_context(item.split, list_room, random);
    const std::vector<size_t> order = draw_order(context.pairs.size(), random);
    if (sharing != 0) return ask(context, {order[(item.index % sharing) % order.size()]});
    return ask(context, choose_questions(context, order, room - list_room));
  }

 protected:
  [[nodiscard]] virtual Context make_context(Split split, size_t tokens, RandomStream& random) const = 0;
  [[nodiscard]] virtual std::string question(std::string_view key) const = 0;
  [[nodiscard]] const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  /// As many of the pairs, in their order, as `tokens` have room for; at least one.
  [[nodiscard]] std::vector<size_t> choose_questions(const Context& context, const std::vector<size_t>& order,
                                                     size_t tokens) const {
    constexpr size_t kTurnTokens = 4;  // user, assistant, end of thinking, end of sentence
    std::vector<size_t> chosen = {order.front()};
    size_t used = 0;
    for (size_t i = 1; i < order.size(); ++i) {
      const Pair& pair = context.pairs[order[i]];
      used +=
          kTurnTokens + tokenizer_.encode_plain(question(pair.key)).size() + tokenizer_.encode_plain(pair.value).size();
      if (used > tokens) break;
      chosen.push_back(order[i]);
    }
    return chosen;
  }

  [[nodiscard]] Dialogue ask(const Context& context, const std::vector<size_t>& questions) const {
    Dialogue dialogue;
    dialogue.request.is_thinking = false;
    std::string text = context.text;
    for (size_t i = 0; i < questions.size(); ++i) {
      const Pair& pair = context.pairs[questions[i]];
      text += question(pair.key);
      dialogue.request.messages.push_back(text_message(ChatRole::kUser, std::move(text)));
      ChatMessage answer = text_message(ChatRole::kAssistant, pair.value);
      if (i + 1 < questions.size()) {
        dialogue.request.messages.push_back(std::move(answer));
      } else {
        dialogue.answer = std::move(answer);
      }
      text.clear();
    }
    return dialogue;
  }

  std::string_view name_;
  TaskOptions options_;
  const Tokenizer& tokenizer_;
};

class RecallTask final : public LookupTask {
 public:
  RecallTask(const TaskOptions& options, const Tokenizer& tokenizer) : LookupTask("recall", options, tokenizer) {}

 private:
  [[nodiscard]] Context make_context(Split split, size_t tokens, RandomStream& random) const override {
    Context context;
    PairSource source(split, random);
    size_t used = 0;
    while (true) {
      Pair pair = source.next();
      const std::string line = fmt::format("{}: {}\n", pair.key, pair.value);
      used += tokenizer().encode_plain(line).size();
      if (used > tokens && !context.pairs.empty()) break;
      context.text += line;
      context.pairs.push_back(std::move(pair));
    }
    context.text += "\n";
    return context;
  }

  [[nodiscard]] std::string question(std::string_view key) const override { return fmt::format("What is {}?", key); }
};

class NeedleTask final : public LookupTask {
 public:
  NeedleTask(const TaskOptions& options, const Tokenizer& tokenizer, const Corpus& corpus)
      : LookupTask("needle", options, tokenizer),
        passages_(corpus, tokenizer),
        needles_(options.questions_per_context) {}

 private:
  [[nodiscard]] Context make_context(Split split, size_t tokens, RandomStream& random) const override {
    // One needle for every 128 tokens, or as many as there are questions; a needle takes some 20.
    constexpr size_t kTokensPerNeedle = 128;
    constexpr size_t kNeedleTokens = 20;
    const size_t most = std::max<size_t>(tokens / (2 * kNeedleTokens), 1);
    const size_t wanted = needles_ != 0 ? needles_ : 1 + random.below(tokens / kTokensPerNeedle + 1);
    const size_t count = std::min(wanted, most);
    Context context;
    context.text = passages_.draw(split, tokens - std::min(tokens, count * kNeedleTokens), random);
    PairSource source(split, random);
    context.pairs.reserve(count);
    for (size_t i = 0; i < count; ++i)
      context.pairs.push_back(source.next());
    for (const Pair& pair : context.pairs)
      hide(pair, random, context.text);
    context.text += "\n";
    return context;
  }

  /// Puts the sentence between two lines of the text.
  static void hide(const Pair& pair, RandomStream& random, std::string& text) {
    constexpr std::array<std::string_view, 3> kForms = {"The code word of the {} is {}.\n",
                                                        "Note that the {} has the code word {}.\n",
                                                        "Remember: for the {} the code word is {}.\n"};
    const std::string sentence = fmt::format(fmt::runtime(random.pick(std::span(kForms))), pair.key, pair.value);
    const size_t found = text.find('\n', random.below(text.size() + 1));
    text.insert(found == std::string::npos ? text.size() : found + 1, sentence);
  }

  [[nodiscard]] std::string question(std::string_view key) const override {
    return fmt::format("What is the code word of the {}?", key);
  }

  Passages passages_;
  size_t needles_;
};

class CopyTask final : public Task {
 public:
  CopyTask(const TaskOptions& options, const Tokenizer& tokenizer, const Corpus& corpus)
      : options_(options), passages_(corpus, tokenizer) {}

  [[nodiscard]] Dialogue make(const TaskItem& item) const override {
    RandomStream random(item.seed, fmt::format("copy/{}", split_name(item.split)), item.index);
    const size_t tokens = draw_length(options_, random);
    const size_t room = (std::max(tokens, 2 * kFrameTokens) - kFrameTokens) / 2;  // it is there twice
    std::string passage;
    for (int tries = 0; tries < kTriesMax && passage.find_first_not_of(" \n") == std::string::npos; ++tries)
      passage = passages_.draw(item.split, room, random);
    if (passage.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("the corpus has no lines of at most {} tokens to copy", room));
    }
    const size_t begin = passage.find_first_not_of('\n');
    passage = passage.substr(begin, passage.find_last_not_of(" \n") + 1 - begin);
    Dialogue dialogue;
    dialogue.request.is_thinking = false;
    dialogue.request.messages.push_back(text_message(ChatRole::kUser, "Repeat this text:\n\n" + passage));
    dialogue.answer = text_message(ChatRole::kAssistant, std::move(passage));
    return dialogue;
  }

 private:
  TaskOptions options_;
  Passages passages_;
};

}  // namespace

std::unique_ptr<Task> make_recall_task(const TaskOptions& options, const Tokenizer& tokenizer) {
  return std::make_unique<RecallTask>(options, tokenizer);
}

std::unique_ptr<Task> make_needle_task(const TaskOptions& options, const Tokenizer& tokenizer, const Corpus& corpus) {
  return std::make_unique<NeedleTask>(options, tokenizer, corpus);
}

std::unique_ptr<Task> make_copy_task(const TaskOptions& options, const Tokenizer& tokenizer, const Corpus& corpus) {
  return std::make_unique<CopyTask>(options, tokenizer, corpus);
}

}  // namespace tidepool
