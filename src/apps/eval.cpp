#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/cache_flags.h"
#include "apps/command.h"
#include "apps/engine_flags.h"
#include "apps/json_values.h"
#include "apps/output.h"
#include "apps/progress.h"
#include "base/error.h"
#include "text/json.h"
#include "train/evaluation.h"
#include "train/tasks_words.h"

namespace tidepool {
namespace {

constexpr const char* kEvalExamples =
    "Examples:\n"
    "  tidepool eval MODEL\n"
    "  tidepool eval MODEL --corpus corpus --json > scores.json\n"
    "  tidepool eval MODEL --task recall arithmetic --items 50\n"
    "  tidepool eval MODEL --task tools --show-wrong 5\n"
    "\n"
    "Tests: recall_256 recall_4k recall_16k recall_64k needle_4k needle_16k needle_64k copy tools arithmetic_10\n"
    "arithmetic_50 arithmetic_100 help pictures text replay; what stands before a _ names all of a kind. docs/eval.md\n"
    "says what each one asks.";

/// Of the divergences of replays, those below the worst hundredth.
constexpr double kWorstShare = 0.99;

struct EvalFlags {
  EngineFlags engine;
  CacheFlags cache;
  std::vector<std::string> tests;
  std::optional<std::string> corpus;
  size_t items = 200;
  uint64_t seed = 1;
  std::string split = "heldout";
  size_t words = 0;
  size_t wrong_shown = 0;
  bool wants_answer_bits = false;
  bool wants_json = false;
};

/// What came of a test, and how long it took.
struct TimedResult {
  EvaluationResult result;
  double seconds = 0;
};

double share(size_t part, size_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

/// Bits of a token of the right answers, on average.
double answer_bits(const EvaluationResult& result) {
  return result.answer_bits / static_cast<double>(result.answer_tokens);
}

Json share_json(const EvaluationResult::Share& share_of) {
  Json object = Json::make_object();
  object.set("items", json_count(share_of.items));
  object.set("right", json_count(share_of.right));
  object.set("accuracy", json_real(share(share_of.right, share_of.items)));
  return object;
}

Json text_json(const TextCost& text) {
  Json object = Json::make_object();
  object.set("bytes", json_count(text.bytes));
  object.set("bits_per_byte", json_real(text.bits_per_byte()));
  return object;
}

Json wrong_json(const std::vector<WrongAnswer>& wrong) {
  Json::Array list;
  list.reserve(wrong.size());
  for (const WrongAnswer& answer : wrong) {
    Json object = Json::make_object();
    object.set("question", Json::make_string(answer.question));
    object.set("expected", Json::make_string(answer.expected));
    object.set("got", Json::make_string(answer.got));
    list.push_back(std::move(object));
  }
  return Json::make_array(std::move(list));
}

template <typename Group, typename ToJson>
Json groups_json(const std::map<std::string, Group>& groups, ToJson to_json) {
  Json object = Json::make_object();
  for (const auto& [name, group] : groups)
    object.set(name, to_json(group));
  return object;
}

Json replay_json(const ReplayCost& replay) {
  Json object = Json::make_object();
  const size_t prompts = replay.divergences.size();
  object.set("prompts", json_count(prompts));
  object.set("kl_mean", json_real(replay.mean()));
  object.set("kl_p99", json_real(replay.quantile(kWorstShare)));
  object.set("same_token", json_real(share(replay.same_tokens, prompts)));
  return object;
}

Json result_json(const TimedResult& timed) {
  const EvaluationResult& result = timed.result;
  Json object = Json::make_object();
  if (result.skipped) {
    object.set("skipped", Json::make_string(*result.skipped));
    return object;
  }
  if (result.text) {
    object = text_json(*result.text);
    object.set("documents", json_count(result.all.items));
    object.set("sources", groups_json(result.text_groups, text_json));
  } else if (result.replay) {
    object = replay_json(*result.replay);
  } else {
    object = share_json(result.all);
    object.set("well_formed", json_count(result.well_formed));
    object.set("ended", json_count(result.ended));
    object.set("too_long", json_count(result.too_long));
    object.set("prompt_tokens", json_real(share(result.prompt_tokens, result.all.items)));
    object.set("output_tokens", json_real(share(result.output_tokens, result.all.items)));
    if (result.answer_tokens > 0) object.set("answer_bits", json_real(answer_bits(result)));
    if (!result.groups.empty()) object.set("groups", groups_json(result.groups, share_json));
    if (!result.wrong.empty()) object.set("wrong", wrong_json(result.wrong));
  }
  object.set("seconds", json_real(timed.seconds));
  return object;
}

std::string groups_text(const EvaluationResult& result) {
  std::string text;
  for (const auto& [name, group] : result.groups)
    text += fmt::format("{}{} {:.1f} %", text.empty() ? "" : ", ", name, 100 * share(group.right, group.items));
  for (const auto& [name, group] : result.text_groups)
    text += fmt::format("{}{} {:.3f}", text.empty() ? "" : ", ", name, group.bits_per_byte());
  return text.empty() ? text : " (" + text + ")";
}

std::string result_line(const TimedResult& timed) {
  const EvaluationResult& result = timed.result;
  if (result.skipped) return fmt::format("{:<15} skipped: {}\n", result.name, *result.skipped);
  if (result.text) {
    return fmt::format("{:<15} {:6.3f} bits per byte of {} documents{}\n", result.name, result.text->bits_per_byte(),
                       result.all.items, groups_text(result));
  }
  if (result.replay) {
    return fmt::format(
        "{:<15} bounded replay is {:.5f} nats from exact, 99 % below {:.5f}; {:.1f} % same token of {}\n", result.name,
        result.replay->mean(), result.replay->quantile(kWorstShare),
        100 * share(result.replay->same_tokens, result.all.items), result.all.items);
  }
  const std::string too_long = result.too_long == 0 ? "" : fmt::format(" ({} too long)", result.too_long);
  const std::string bits =
      result.answer_tokens == 0 ? "" : fmt::format("; {:.3f} bits a token of the answer", answer_bits(result));
  return fmt::format("{:<15} {:5.1f} % right, {:5.1f} % well-formed of {}{}; {:.1f} tokens each{}{}; {:.0f} s\n",
                     result.name, 100 * share(result.all.right, result.all.items),
                     100 * share(result.well_formed, result.all.items), result.all.items, too_long,
                     share(result.output_tokens, result.all.items), groups_text(result), bits, timed.seconds);
}

void write_result(const Output& output, const TimedResult& timed) {
  output.write(result_line(timed));
  for (const WrongAnswer& answer : timed.result.wrong) {
    output.write_foreign(
        fmt::format("  asked:    {}\n  expected: {}\n  got:      {}\n", answer.question, answer.expected, answer.got));
  }
}

/// A test that is asked for by name is not to be passed over for want of a corpus.
void check_corpus(const EvalFlags& flags, const std::vector<EvaluationTest>& tests) {
  if (flags.tests.empty() || flags.corpus) return;
  for (const EvaluationTest& test : tests) {
    if (!needs_corpus(test)) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("test {} needs texts: name the folder that tools/fetch_corpus.sh filled with --corpus", test.name));
  }
}

EvaluationOptions evaluation_options(const EvalFlags& flags) {
  EvaluationOptions options;
  options.items = flags.items;
  options.seed = flags.seed;
  options.replay = parse_replay(flags.engine.replay);
  options.chunk = flags.engine.chunk;
  options.context_max = flags.engine.max_model_len;
  options.split = flags.split == split_name(Split::kTrain) ? Split::kTrain : Split::kHeldout;
  options.words = flags.words;
  options.wrong_shown = flags.wrong_shown;
  options.measures_answer_bits = flags.wants_answer_bits;
  return options;
}

int evaluate(const EvalFlags& flags) {
  const std::vector<EvaluationTest> tests = choose_evaluation_tests(flags.tests);
  check_corpus(flags, tests);
  std::optional<Corpus> corpus;
  if (flags.corpus) corpus = Corpus::load(*flags.corpus);
  const std::unique_ptr<LoadedModel> model = load_model(flags.engine);
  const std::unique_ptr<KvCache> cache = open_cache(flags.cache, *model);
  Evaluation evaluation(*model, *cache, corpus ? &*corpus : nullptr, evaluation_options(flags));
  const Output output(Output::kStandardOutput);
  Progress progress;
  Json results = Json::make_object();
  for (const EvaluationTest& test : tests) {
    const auto start = std::chrono::steady_clock::now();
    TimedResult timed;
    timed.result = evaluation.run(test, [&](size_t done, size_t total) { progress.update(test.name, done, total); });
    timed.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    progress.finish();
    if (!flags.wants_json) write_result(output, timed);
    results.set(test.name, result_json(timed));
  }
  const std::vector<std::string>& missing = evaluation.missing_control_tokens();
  if (!flags.wants_json) {
    if (missing.empty()) return kExitOk;
    Output(Output::kStandardError)
        .write(fmt::format("tidepool: note: the tokenizer lacks {}; the names went in as text\n",
                           fmt::join(missing, " ")));
    return kExitOk;
  }
  Json object = Json::make_object();
  object.set("model", Json::make_string(flags.engine.model));
  object.set("items", json_count(flags.items));
  object.set("seed", json_count(flags.seed));
  object.set("tests", std::move(results));
  if (!missing.empty()) {
    Json::Array names;
    names.reserve(missing.size());
    for (const std::string& token : missing)
      names.push_back(Json::make_string(token));
    object.set("missing_control_tokens", Json::make_array(std::move(names)));
  }
  output.write(write_json(object) + "\n");
  return kExitOk;
}

}  // namespace

void add_eval_command(CLI::App& program, Invocation& invocation) {
  CLI::App* command = program.add_subcommand("eval", "measure what a model can do, on held-out tests");
  const auto flags = std::make_shared<EvalFlags>();
  add_engine_flags(*command, flags->engine);
  add_kv_cache_dtype_flag(*command, flags->engine);
  add_cache_flags(*command, flags->cache);
  command->add_option("--task", flags->tests, "tests, or what stands before a _ in their names; all when absent");
  command->add_option("--corpus", flags->corpus,
                      "folder that tools/fetch_corpus.sh filled; without it its tests are skipped");
  constexpr size_t kItemsMax = 1'000'000;
  command->add_option("--items", flags->items, "items of each test")
      ->check(CLI::Range(size_t{1}, kItemsMax))
      ->capture_default_str();
  command->add_option("--seed", flags->seed, "which held-out items")->capture_default_str();
  command
      ->add_option("--split", flags->split,
                   "which items of tasks: heldout, or new ones of the kind that training sees (train)")
      ->check(CLI::IsMember({"heldout", "train"}))
      ->capture_default_str();
  command
      ->add_option("--words", flags->words,
                   "of how many words the lists of recall are, for a model that was trained on so few; 0 is all")
      ->check(CLI::Range(size_t{0}, task_words().size()))
      ->capture_default_str();
  command->add_option("--show-wrong", flags->wrong_shown, "wrong answers to show of each test");
  command->add_flag("--answer-bits", flags->wants_answer_bits,
                    "also what the right answers cost the model, in bits a token");
  command->add_flag("--json", flags->wants_json, "one JSON object on standard output (docs/eval.md)");
  command->footer(kEvalExamples);
  command->callback([flags, &invocation] {
    invocation.wants_json = flags->wants_json;
    invocation.body = [flags] { return evaluate(*flags); };
  });
}

}  // namespace tidepool
