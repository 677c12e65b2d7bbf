// Recall and needle: a key of one word, a value of one; which values a key may have tells the splits apart.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "train/random_stream.h"
#include "train/tasks.h"
#include "train/tasks_passages.h"
#include "train/tasks_words.h"

namespace tidepool {
namespace {

/// One pair of key and value in so many is held out.
constexpr uint64_t kPairsHeldoutOneIn = 4;
/// What a line of a pair takes, where words are single tokens.
constexpr size_t kPairTokens = 3;
/// Pairs of one context; below the number of words, as keys are all different.
constexpr size_t kPairsMax = 96;
/// Tokens of the format around a list and its first question, and of an answer; generous.
constexpr size_t kFrameTokens = 40;
/// Passages that are tried for one that has any text.
constexpr int kPassageTriesMax = 1000;
/// What questions and answers may take of a conversation that is learnt from.
constexpr double kQuestionShare = 0.6;

struct Pair {
  std::string key;
  std::string value;
};

/// Draws pairs that are of one split, with keys that are all different.
class PairSource {
 public:
  PairSource(Split split, std::span<const std::string_view> words, RandomStream& random)
      : split_(split), words_(words), random_(random) {}

  Pair next() {
    while (true) {
      Pair pair = {std::string(random_.pick(words_)), std::string(random_.pick(words_))};
      const bool is_heldout = stable_hash(pair.key + " " + pair.value) % kPairsHeldoutOneIn == 0;
      if (is_heldout == (split_ == Split::kHeldout) && keys_.insert(pair.key).second) return pair;
    }
  }

 private:
  Split split_;
  std::span<const std::string_view> words_;
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

/// What recall and needle have in common: a text to look things up in, pairs that are lines of it, and questions.
struct Context {
  std::string text;  ///< up to the first question
  std::vector<Pair> pairs;
};

/// What a context says of a pair, and the answer to its question. An answer repeats the line, so that its value is
/// looked up behind the same token: a value that is all of an answer takes two steps to find, question and list, which
/// small models learn far later (docs/pocket.md).
std::string statement_of(const Pair& pair) {
  return fmt::format("{} {}", pair.key, pair.value);
}

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
    // Long contexts are mostly what stands between the pairs: there questions take no more than those of all pairs do.
    const size_t question_room =
        sharing != 0
            ? 0
            : std::min(static_cast<size_t>(kQuestionShare * static_cast<double>(room)), kPairsMax * kQuestionTokens);
    const Context context = make_context(item.split, room - question_room, random);
    const std::vector<size_t> order = draw_order(context.pairs.size(), random);
    if (sharing != 0) return ask(context, {order[(item.index % sharing) % order.size()]});
    return ask(context, choose_questions(context, order, question_room));
  }

 protected:
  /// At most that many tokens, and at least one pair.
  [[nodiscard]] virtual Context make_context(Split split, size_t tokens, RandomStream& random) const = 0;
  [[nodiscard]] size_t tokens_of(std::string_view text) const { return tokenizer_.encode_plain(text).size(); }

 private:
  /// What a question of its own takes of a conversation, where words are single tokens.
  static constexpr size_t kQuestionTokens = 8;

  /// As many of the pairs, in their order, as `tokens` have room for; at least one.
  [[nodiscard]] std::vector<size_t> choose_questions(const Context& context, const std::vector<size_t>& order,
                                                     size_t tokens) const {
    constexpr size_t kTurnTokens = 7;  // user, question mark, assistant, end of thinking, end of sentence; generous
    std::vector<size_t> chosen = {order.front()};
    size_t used = 0;
    for (size_t i = 1; i < order.size(); ++i) {
      const Pair& pair = context.pairs[order[i]];
      used += kTurnTokens + tokens_of(pair.key) + tokens_of(statement_of(pair));
      if (used > tokens) break;
      chosen.push_back(order[i]);
    }
    return chosen;
  }

  [[nodiscard]] static Dialogue ask(const Context& context, const std::vector<size_t>& questions) {
    Dialogue dialogue;
    dialogue.request.is_thinking = false;
    std::string text = context.text;
    for (const size_t index : questions) {
      const Pair& pair = context.pairs[index];
      text += pair.key + "?";
      dialogue.request.messages.push_back(text_message(ChatRole::kUser, std::move(text)));
      dialogue.request.messages.push_back(text_message(ChatRole::kAssistant, statement_of(pair)));
      text.clear();
    }
    dialogue.answer = std::move(dialogue.request.messages.back());
    dialogue.request.messages.pop_back();
    return dialogue;
  }

  std::string_view name_;
  TaskOptions options_;
  const Tokenizer& tokenizer_;
};

/// Lines of pairs; where there is more room than for kPairsMax of them, among lines of digits.
class RecallTask final : public LookupTask {
 public:
  RecallTask(const TaskOptions& options, const Tokenizer& tokenizer)
      : LookupTask("recall", options, tokenizer),
        words_(options.words == 0 ? task_words() : task_words().first(options.words)),
        pairs_max_(options.words == 0 ? kPairsMax : std::min(kPairsMax, options.words * 3 / 4)) {}

 private:
  [[nodiscard]] Context make_context(Split split, size_t tokens, RandomStream& random) const override {
    Context context;
    PairSource source(split, words_, random);
    std::vector<std::string> lines;
    size_t used = 0;
    const auto add = [&](std::string line) {
      line += "\n";
      used += tokens_of(line);
      if (used > tokens && !context.pairs.empty()) return false;
      lines.push_back(std::move(line));
      return true;
    };
    while (context.pairs.size() < pairs_max_) {
      Pair pair = source.next();
      if (!add(statement_of(pair))) break;
      context.pairs.push_back(std::move(pair));
    }
    if (context.pairs.size() == pairs_max_) {
      while (add(line_of_digits(random))) {
      }
    }
    for (const size_t i : draw_order(lines.size(), random))
      context.text += lines[i];
    context.text += "\n";
    return context;
  }

  static std::string line_of_digits(RandomStream& random) {
    constexpr size_t kDigits = 20;
    std::string line;
    for (size_t i = 0; i < kDigits; ++i)
      line += fmt::format("{}{}", i == 0 ? "" : " ", random.below(10));
    return line;
  }

  std::span<const std::string_view> words_;
  size_t pairs_max_;  ///< so far below the number of words that new keys are found soon
};

/// Lines of pairs among those of pages.
class NeedleTask final : public LookupTask {
 public:
  NeedleTask(const TaskOptions& options, const Tokenizer& tokenizer, const Corpus& corpus)
      : LookupTask("needle", options, tokenizer),
        passages_(corpus, tokenizer),
        needles_(options.questions_per_context) {}

 private:
  [[nodiscard]] Context make_context(Split split, size_t tokens, RandomStream& random) const override {
    // One for every 64 tokens at most, or as many as there are questions.
    constexpr size_t kTokensPerNeedle = 64;
    const size_t wanted = needles_ != 0 ? needles_ : 1 + random.below(tokens / kTokensPerNeedle + 1);
    const size_t most = std::max<size_t>(tokens / (2 * kPairTokens), 1);
    const size_t count = std::min({wanted, most, kPairsMax});
    Context context;
    context.text = passages_.draw(split, tokens - std::min(tokens, count * kPairTokens), random);
    PairSource source(split, task_words(), random);
    context.pairs.reserve(count);
    for (size_t i = 0; i < count; ++i)
      context.pairs.push_back(source.next());
    hide(context.pairs, random, context.text);
    context.text += "\n";
    return context;
  }

  /// Puts a line for each pair between two lines of the text.
  static void hide(const std::vector<Pair>& pairs, RandomStream& random, std::string& text) {
    std::vector<std::pair<size_t, std::string>> lines;  // with where they go
    lines.reserve(pairs.size());
    for (const Pair& pair : pairs) {
      const size_t found = text.find('\n', random.below(text.size() + 1));
      lines.emplace_back(found == std::string::npos ? text.size() : found + 1, statement_of(pair) + "\n");
    }
    // From the back, so that places stay, and none comes to lie within another line.
    std::ranges::stable_sort(lines, std::greater<>{}, &std::pair<size_t, std::string>::first);
    for (const auto& [place, line] : lines)
      text.insert(place, line);
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
    const auto is_blank = [&] { return passage.find_first_not_of(" \n") == std::string::npos; };
    for (int tries = 0; tries < kPassageTriesMax && is_blank(); ++tries)
      passage = passages_.draw(item.split, room, random);
    if (is_blank()) {
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
