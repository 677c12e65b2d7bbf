#include "train/evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "base/error.h"
#include "text/tokenizer_control.h"
#include "text/unicode.h"
#include "train/name_list.h"
#include "train/random_stream.h"

namespace tidepool {
namespace {

/// Questions that are asked about one context: the context is read once.
constexpr size_t kSharing = 25;
/// Tokens of a held-out text that are predicted, from its beginning on.
constexpr size_t kTextTokens = 1024;
/// How much longer than the right answer an output may be before it is cut off.
constexpr size_t kAnswerFactor = 2;
constexpr size_t kAnswerSlack = 64;
/// Of a wrong answer's question, the end that is shown.
constexpr size_t kQuestionShown = 200;

std::string text_end(const ChatMessage& message) {
  std::string text;
  for (const ContentBlock& block : message.content)
    text += block.text;
  for (const ContentBlock& block : message.content) {
    for (const ContentBlock& part : block.content)
      text += part.text;
  }
  if (text.size() > kQuestionShown) text = "..." + text.substr(text.size() - kQuestionShown);
  return replace_invalid_utf8(text);
}

std::string shown(const Completion& output) {
  std::string text = output.reasoning.empty() ? "" : output.reasoning + "</think>";
  text += output.content;
  for (const Completion::Call& call : output.calls)
    text += fmt::format("\n{} {}", call.name, call.arguments);
  return replace_invalid_utf8(text);
}

/// log sum exp of a row.
double log_sum(std::span<const float> logits) {
  const float highest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits)
    sum += std::exp(static_cast<double>(logit - highest));
  return std::log(sum) + static_cast<double>(highest);
}

/// The bits by which a row of logits misses a token.
double bits_of_row(std::span<const float> logits, int32_t target) {
  return (log_sum(logits) - static_cast<double>(logits[static_cast<size_t>(target)])) / std::numbers::ln2;
}

/// KL(softmax(p) || softmax(q)) of two rows of logits, in nats.
double divergence(std::span<const float> p, std::span<const float> q) {
  const double sum_p = log_sum(p);
  const double sum_q = log_sum(q);
  double total = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_p = static_cast<double>(p[i]) - sum_p;
    total += std::exp(log_p) * (log_p - (static_cast<double>(q[i]) - sum_q));
  }
  return std::max(total, 0.0);  // equal distributions may come out a rounding below
}

std::ptrdiff_t most_likely(std::span<const float> logits) {
  return std::ranges::max_element(logits) - logits.begin();
}

}  // namespace

/// The beginning of a held-out document.
struct Evaluation::HeldoutText {
  const CorpusSource& source;
  std::vector<InputToken> tokens;  ///< behind the token that begins every text
  uint64_t bytes = 0;
};

const std::vector<EvaluationTest>& evaluation_tests() {
  static const std::vector<EvaluationTest> tests = {
      {.name = "recall_256", .task = "recall", .length = 256, .sharing = kSharing},
      {.name = "recall_4k", .task = "recall", .length = 4096, .sharing = kSharing},
      {.name = "recall_16k", .task = "recall", .length = 16384, .sharing = kSharing},
      {.name = "recall_64k", .task = "recall", .length = 65536, .sharing = kSharing},
      {.name = "needle_4k", .task = "needle", .length = 4096, .sharing = kSharing},
      {.name = "needle_16k", .task = "needle", .length = 16384, .sharing = kSharing},
      {.name = "needle_64k", .task = "needle", .length = 65536, .sharing = kSharing},
      {.name = "copy", .task = "copy", .length = 512},
      {.name = "tools", .task = "tools", .sharing = 1},
      {.name = "arithmetic_10", .task = "arithmetic", .effort = 10},
      {.name = "arithmetic_50", .task = "arithmetic", .effort = 50},
      {.name = "arithmetic_100", .task = "arithmetic", .effort = 100},
      {.name = "help", .task = "help"},
      {.name = "pictures", .task = "pictures", .sharing = 1},
      {.name = "text", .kind = EvaluationTest::Kind::kText},
      {.name = "replay", .kind = EvaluationTest::Kind::kReplay},
  };
  return tests;
}

std::vector<EvaluationTest> choose_evaluation_tests(const std::vector<std::string>& names) {
  const std::vector<EvaluationTest>& all = evaluation_tests();
  const auto is_of = [](const EvaluationTest& test, const std::string& name) {
    return test.name == name || test.name.starts_with(name + "_");
  };
  for (const std::string& name : names) {
    if (std::ranges::any_of(all, [&](const EvaluationTest& test) { return is_of(test, name); })) continue;
    std::vector<std::string_view> known;
    known.reserve(all.size());
    for (const EvaluationTest& test : all)
      known.push_back(test.name);
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("there is no test \"{}\"; there are: {}", name, name_list(known)));
  }
  std::vector<EvaluationTest> chosen;
  std::ranges::copy_if(all, std::back_inserter(chosen), [&](const EvaluationTest& test) {
    return names.empty() || std::ranges::any_of(names, [&](const std::string& name) { return is_of(test, name); });
  });
  return chosen;
}

bool needs_corpus(const EvaluationTest& test) {
  return test.kind != EvaluationTest::Kind::kAnswers || needs_corpus(test.task);
}

void count_answer(const Dialogue& dialogue, const Completion& output, bool has_ended, EvaluationResult& result) {
  const AnswerScore score = score_answer(dialogue, output, has_ended);
  const auto count = [&](EvaluationResult::Share& share) {
    ++share.items;
    share.right += score.is_right ? 1 : 0;
  };
  count(result.all);
  if (!dialogue.group.empty()) count(result.groups[dialogue.group]);
  result.well_formed += score.is_well_formed ? 1 : 0;
  result.ended += has_ended ? 1 : 0;
}

Evaluation::Evaluation(const LoadedModel& model, KvCache& cache, const Corpus* corpus, const EvaluationOptions& options)
    : model_(model), corpus_(corpus), options_(options), conversation_(model, cache) {
  if (options_.items == 0) throw Error(ErrorCode::kInvalidArgument, "a test needs one item at least");
}

int64_t Evaluation::context_max() const {
  const int64_t made_for = model_.config().max_position_embeddings;
  return std::min(options_.context_max.value_or(made_for), made_for);
}

std::optional<std::string> Evaluation::reason_to_skip(const EvaluationTest& test) const {
  if (needs_corpus(test) && corpus_ == nullptr)
    return "needs texts: --corpus names the folder of tools/fetch_corpus.sh";
  if (has_pictures(test.task) && !model_.config().vision) return "needs a model with a vision tower";
  if (static_cast<int64_t>(test.length) > context_max()) {
    return fmt::format("needs a context of {} tokens, and this one has {}", test.length, context_max());
  }
  return std::nullopt;
}

EvaluationResult Evaluation::run(const EvaluationTest& test, const Progress& progress) {
  EvaluationResult result;
  result.name = test.name;
  result.skipped = reason_to_skip(test);
  if (result.skipped) return result;
  switch (test.kind) {
    case EvaluationTest::Kind::kAnswers: run_task(test, progress, result); break;
    case EvaluationTest::Kind::kText: run_text(progress, result); break;
    case EvaluationTest::Kind::kReplay: run_replay(progress, result); break;
  }
  return result;
}

void Evaluation::run_task(const EvaluationTest& test, const Progress& progress, EvaluationResult& result) {
  TaskOptions options;
  if (test.length != 0) {
    // Room for an answer and for a tokenizer that lacks control tokens.
    options.length_min = options.length_max = test.length - kAnswerSlack;
  }
  options.effort = test.effort;
  options.questions_per_context = test.sharing;
  if (test.task == "recall") options.words = options_.words;
  const std::unique_ptr<Task> task = make_task(test.task, options, model_.tokenizer(), corpus_);
  for (uint64_t index = 0; index < options_.items; ++index) {
    if (progress) progress(index, options_.items);
    answer(task->make({options_.split, options_.seed, index}), result);
  }
}

void Evaluation::answer(const Dialogue& dialogue, EvaluationResult& result) {
  std::vector<std::string> missing;
  TurnRequest turn = make_chat_turn(model_, dialogue.request, missing);
  for (std::string& token : missing) {
    if (std::ranges::find(missing_, token) == missing_.end()) missing_.push_back(std::move(token));
  }
  const size_t answer_tokens = model_.tokenizer().encode(answer_text(dialogue)).size();
  const auto most = static_cast<int64_t>(kAnswerFactor * answer_tokens + kAnswerSlack);
  turn.generation.sampling.temperature = 0;
  turn.generation.max_tokens = most;
  turn.generation.replay = options_.replay;
  turn.generation.chunk = options_.chunk;
  turn.generation.context_max = context_max();
  turn.drafts.mode = DraftOptions::Mode::kOff;
  const auto prompt_tokens = static_cast<int64_t>(turn.prompt.size());
  if (prompt_tokens + static_cast<int64_t>(answer_tokens) >= context_max()) {
    ++result.too_long;
    count_answer(dialogue, {}, false, result);
    return;
  }
  const TurnResult output = conversation_.run(turn);
  result.prompt_tokens += turn.prompt.size();
  result.output_tokens += output.tokens.size();
  // Behind the last call of an answer nothing more is read, and the end of sentence is not waited for.
  const bool has_ended = output.finish == FinishReason::kStopToken || output.finish == FinishReason::kStopText;
  const size_t right = result.all.right;
  count_answer(dialogue, output.completion, has_ended, result);
  if (result.all.right == right && result.wrong.size() < options_.wrong_shown) {
    result.wrong.push_back({.question = text_end(dialogue.request.messages.back()),
                            .expected = answer_text(dialogue),
                            .got = shown(output.completion)});
  }
  if (options_.measures_answer_bits) measure_answer(std::move(turn), dialogue, result);
}

void Evaluation::measure_answer(TurnRequest turn, const Dialogue& dialogue, EvaluationResult& result) {
  std::vector<int32_t>& answer = turn.generation.forced;
  answer = model_.tokenizer().encode(answer_text(dialogue));
  answer.push_back(static_cast<int32_t>(find_control_tokens(model_.tokenizer()).end_of_sentence));
  turn.generation.max_tokens = static_cast<int64_t>(answer.size());
  turn.generation.sampling.top_logprobs = 0;
  for (const SampledToken& token : conversation_.run(turn).tokens) {
    result.answer_bits -= token.logprobs.value().chosen / std::numbers::ln2;
    ++result.answer_tokens;
  }
}

/// Hands over as many held-out documents as are asked for, in an order that follows from the seed.
void Evaluation::for_texts(const Progress& progress, const std::function<void(const HeldoutText&)>& body) const {
  struct Place {
    const CorpusSource* source = nullptr;
    const CorpusDocument* document = nullptr;
  };
  std::vector<Place> places;
  for (const CorpusSource& source : corpus_->sources()) {
    for (const CorpusDocument& document : source.heldout)
      places.push_back({&source, &document});
  }
  const auto begin = static_cast<int32_t>(find_control_tokens(model_.tokenizer()).begin_of_sentence);
  const size_t tokens_max = std::min(kTextTokens, static_cast<size_t>(context_max()) - 1);
  const size_t count = std::min(options_.items, places.size());
  for (size_t i = 0; i < count; ++i) {
    if (progress) progress(i, count);
    const auto& [source, document] = places[shuffled_index(options_.seed, 0, i, places.size())];
    std::vector<int32_t> ids = model_.tokenizer().encode_plain(document->text);
    ids.resize(std::min(ids.size(), tokens_max));
    HeldoutText text{.source = *source, .tokens = {{.id = begin}}, .bytes = model_.tokenizer().decode(ids).size()};
    text.tokens.reserve(ids.size() + 1);
    for (const int32_t id : ids)
      text.tokens.push_back({.id = id});
    body(text);
  }
}

void Evaluation::run_text(const Progress& progress, EvaluationResult& result) {
  result.text.emplace();
  for_texts(progress, [&](const HeldoutText& held) {
    const double bits = bits_of(held.tokens);
    for (TextCost* text : {&*result.text, &result.text_groups[held.source.name]}) {
      text->bits += bits;
      text->bytes += held.bytes;
    }
    ++result.all.items;
    result.prompt_tokens += held.tokens.size();
  });
  if (result.text->bytes == 0) result.skipped = "the corpus has no held-out text";
}

double Evaluation::bits_of(const std::vector<InputToken>& tokens) {
  PrefillOptions options;
  options.replay = Replay::kFull;
  options.chunk = options_.chunk;
  options.logits = PrefillOptions::Logits::kAll;
  SequenceState state = model_.model().new_sequence();
  double bits = 0;
  const auto add = [&](int64_t first, Span2d<const float> logits, size_t /*tokens_done*/) {
    for (size_t row = 0; row < logits.rows; ++row) {
      const size_t next = static_cast<size_t>(first) + row + 1;
      if (next < tokens.size()) bits += bits_of_row(logits.row(row), tokens[next].id);
    }
    return true;
  };
  (void)prefill(model_.model(), model_.runtime(), arena_, state, tokens, options, add);
  return bits;
}

void Evaluation::run_replay(const Progress& progress, EvaluationResult& result) {
  ReplayCost& cost = result.replay.emplace();
  const auto window = static_cast<size_t>(model_.config().sliding_window);
  for_texts(progress, [&](const HeldoutText& text) {
    if (text.tokens.size() <= window) return;  // both read all of it
    const std::vector<float> exact = last_logits(text.tokens, Replay::kExact);
    const std::vector<float> bounded = last_logits(text.tokens, Replay::kBounded);
    cost.divergences.push_back(divergence(exact, bounded));
    cost.same_tokens += most_likely(exact) == most_likely(bounded) ? 1 : 0;
    ++result.all.items;
    result.prompt_tokens += text.tokens.size();
  });
  if (cost.divergences.empty())
    result.skipped = fmt::format("no held-out text is longer than the model's window, {} tokens", window);
}

/// Logits behind the last token.
std::vector<float> Evaluation::last_logits(const std::vector<InputToken>& tokens, Replay replay) {
  PrefillOptions options;
  options.replay = replay;
  options.chunk = options_.chunk;
  SequenceState state = model_.model().new_sequence();
  std::vector<float> last;
  const auto keep = [&](int64_t /*first*/, Span2d<const float> logits, size_t /*tokens_done*/) {
    if (logits.rows > 0) last.assign(logits.row(0).begin(), logits.row(0).end());
    return true;
  };
  (void)prefill(model_.model(), model_.runtime(), arena_, state, tokens, options, keep);
  return last;
}

double ReplayCost::mean() const {
  const double sum = std::accumulate(divergences.begin(), divergences.end(), 0.0);
  return divergences.empty() ? 0 : sum / static_cast<double>(divergences.size());
}

double ReplayCost::quantile(double share) const {
  if (divergences.empty()) return 0;
  std::vector<double> sorted = divergences;
  std::ranges::sort(sorted);
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  return sorted[std::clamp(rank, size_t{1}, sorted.size()) - 1];
}

}  // namespace tidepool
