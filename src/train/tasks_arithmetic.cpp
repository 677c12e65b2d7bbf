// Arithmetic with shown steps. The same problem is answered at any effort: at a low one without steps, at a middle one
// with intermediate results, at a high one digit by digit. What the steps buy is then a matter of measurement.
#include <fmt/format.h>

#include <array>
#include <string>

#include "train/random_stream.h"
#include "train/tasks.h"

namespace tidepool {
namespace {

constexpr uint64_t kHeldoutOneIn = 8;
/// Where the amount of steps changes.
constexpr int kEffortWithResults = 30;
constexpr int kEffortWithDigits = 80;

enum class Detail : uint8_t { kNone, kResults, kDigits };

Detail detail_of(int effort) {
  if (effort < kEffortWithResults) return Detail::kNone;
  return effort < kEffortWithDigits ? Detail::kResults : Detail::kDigits;
}

/// a + b column by column: "7+6=13, 4+8+1=13, 3+5+1=9".
std::string add_steps(int64_t a, int64_t b) {
  std::string steps;
  int64_t carry = 0;
  while (a > 0 || b > 0) {
    const int64_t left = a % 10;
    const int64_t right = b % 10;
    const int64_t sum = left + right + carry;
    steps += steps.empty() ? "" : ", ";
    steps += carry > 0 ? fmt::format("{}+{}+1={}", left, right, sum) : fmt::format("{}+{}={}", left, right, sum);
    carry = sum / 10;
    a /= 10;
    b /= 10;
  }
  return steps;
}

/// a - b, which is not negative, column by column; a borrow is shown as the ten that is added and the one taken back.
std::string subtract_steps(int64_t a, int64_t b) {
  std::string steps;
  int64_t borrow = 0;
  while (a > 0 || b > 0) {
    const int64_t top = a % 10;
    const int64_t bottom = b % 10 + borrow;
    const int64_t ten = top < bottom ? 10 : 0;
    steps += steps.empty() ? "" : ", ";
    steps += fmt::format("{}-{}={}", top + ten, bottom, top + ten - bottom);
    borrow = ten / 10;
    a /= 10;
    b /= 10;
  }
  return steps;
}

/// a * digit column by column: "7*6=42, 4*6+4=28".
std::string multiply_steps(int64_t a, int64_t digit) {
  std::string steps;
  int64_t carry = 0;
  while (a > 0) {
    const int64_t product = a % 10 * digit + carry;
    steps += steps.empty() ? "" : ", ";
    steps += carry > 0 ? fmt::format("{}*{}+{}={}", a % 10, digit, carry, product)
                       : fmt::format("{}*{}={}", a % 10, digit, product);
    carry = product / 10;
    a /= 10;
  }
  return steps;
}

/// The lines of a working: what is computed, how if digits are shown, and the result.
class Working {
 public:
  explicit Working(Detail detail) : detail_(detail) {}

  void add(std::string_view term, std::string_view steps, int64_t result) {
    if (detail_ == Detail::kNone) return;
    if (!text_.empty()) text_ += "\n";
    text_ += detail_ == Detail::kDigits && !steps.empty() ? fmt::format("{}: {}; {}", term, steps, result)
                                                          : fmt::format("{}={}", term, result);
  }
  std::string take() { return std::move(text_); }

 private:
  Detail detail_;
  std::string text_;
};

struct Problem {
  std::string text;  ///< "347+586-128"
  int64_t result = 0;
  std::string steps;  ///< the reasoning
  std::string_view kind;
};

/// Two to four numbers, added and subtracted from the left; no intermediate result is negative.
Problem make_sum(RandomStream& random, Detail detail) {
  Problem problem;
  problem.kind = "sum";
  Working working(detail);
  const int64_t terms = random.between(2, 4);
  const std::array<int64_t, 3> limits = {99, 999, 9999};
  const int64_t limit = random.pick(std::span(limits));
  problem.result = random.between(10, limit);
  problem.text = fmt::format("{}", problem.result);
  for (int64_t i = 1; i < terms; ++i) {
    const int64_t term = random.between(10, limit);
    const bool subtracts = term <= problem.result && random.one_in(2);
    const std::string step = fmt::format("{}{}{}", problem.result, subtracts ? '-' : '+', term);
    problem.text += fmt::format("{}{}", subtracts ? '-' : '+', term);
    const int64_t before = problem.result;
    problem.result += subtracts ? -term : term;
    working.add(step, subtracts ? subtract_steps(before, term) : add_steps(before, term), problem.result);
  }
  problem.steps = working.take();
  return problem;
}

/// A number of two or three digits times one of one or two: the product with each digit, then their sum.
Problem make_product(RandomStream& random, Detail detail) {
  Problem problem;
  problem.kind = "product";
  Working working(detail);
  const int64_t left = random.between(12, random.one_in(2) ? 99 : 999);
  const int64_t right = random.between(3, random.one_in(2) ? 9 : 99);
  problem.text = fmt::format("{}*{}", left, right);
  problem.result = left * right;
  const int64_t ones = right % 10;
  const int64_t tens = right / 10;
  working.add(fmt::format("{}*{}", left, ones), multiply_steps(left, ones), left * ones);
  if (tens > 0) {
    working.add(fmt::format("{}*{}", left, tens), multiply_steps(left, tens), left * tens);
    working.add(fmt::format("{}0+{}", left * tens, left * ones), add_steps(left * tens * 10, left * ones),
                problem.result);
  }
  problem.steps = working.take();
  return problem;
}

class ArithmeticTask final : public Task {
 public:
  explicit ArithmeticTask(const TaskOptions& options) : options_(options) {}

  [[nodiscard]] Dialogue make(const TaskItem& item) const override {
    // The problems of an index are the same at every effort.
    RandomStream random(item.seed, fmt::format("arithmetic/{}", split_name(item.split)), item.index);
    constexpr std::array<int, 6> kEfforts = {10, 20, 50, 75, 90, 100};
    const int drawn = random.pick(std::span(kEfforts));
    const int effort = options_.effort != 0 ? options_.effort : drawn;
    constexpr std::array<std::string_view, 6> kForms = {"What is {}?",     "Compute {}.",   "{}",
                                                        "How much is {}?", "Calculate {}.", "{} = ?"};
    const std::string_view form = random.pick(std::span(kForms));
    const Problem problem = draw_problem(item.split, random, detail_of(effort));
    Dialogue dialogue;
    dialogue.request.effort = effort;
    dialogue.request.messages.push_back(text_message(ChatRole::kUser, fmt::format(fmt::runtime(form), problem.text)));
    dialogue.answer = text_message(ChatRole::kAssistant, fmt::format("{}", problem.result));
    dialogue.answer.reasoning = problem.steps;
    dialogue.group = problem.kind;
    return dialogue;
  }

 private:
  static Problem draw_problem(Split split, RandomStream& random, Detail detail) {
    while (true) {
      Problem problem = random.one_in(3) ? make_product(random, detail) : make_sum(random, detail);
      const bool is_heldout = stable_hash(problem.text) % kHeldoutOneIn == 0;
      if (is_heldout == (split == Split::kHeldout)) return problem;
    }
  }

  TaskOptions options_;
};

}  // namespace

std::unique_ptr<Task> make_arithmetic_task(const TaskOptions& options) {
  return std::make_unique<ArithmeticTask>(options);
}

}  // namespace tidepool
