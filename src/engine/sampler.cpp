#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/error.h"

namespace tidepool {
namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();

/// The model's own numbers must make a distribution; one pass finds out.
void check_logits(std::span<const float> logits) {
  bool has_possible = false;
  for (size_t id = 0; id < logits.size(); ++id) {
    const float logit = logits[id];
    if (std::isnan(logit) || logit == std::numeric_limits<float>::infinity()) {
      throw Error(ErrorCode::kNumeric,
                  fmt::format("the model's logits hold {} at token {}: its arithmetic failed; check the weight files, "
                              "and try --isa reference",
                              std::isnan(logit) ? "NaN" : "+infinity", id));
    }
    has_possible = has_possible || logit != kImpossible;
  }
  if (!has_possible) {
    throw Error(ErrorCode::kNumeric,
                "the model's logits are all -infinity: its arithmetic failed; check the weight files, and try --isa "
                "reference");
  }
}

/// log sum exp, in ascending order of id.
double log_total(std::span<const float> logits) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits)
    sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum);
}

/// The `count` most likely tokens by insertion: count is at most kTopLogprobsMax, and few tokens get past the last one.
std::vector<TokenLogprob> most_likely(std::span<const float> logits, size_t count, double total) {
  std::vector<TokenLogprob> top;
  top.reserve(count + 1);
  for (size_t id = 0; id < logits.size(); ++id) {
    const auto logit = static_cast<double>(logits[id]);
    if (top.size() == count && (count == 0 || logit <= top.back().logprob)) continue;
    const auto place = std::ranges::upper_bound(top, logit, std::greater<>(), &TokenLogprob::logprob);
    top.insert(place, {static_cast<int32_t>(id), logit});
    if (top.size() > count) top.pop_back();
  }
  for (TokenLogprob& token : top)
    token.logprob -= total;
  return top;
}

Logprobs make_logprobs(std::span<const float> logits, int32_t chosen, int64_t top_count) {
  Logprobs result;
  const double total = log_total(logits);
  const float logit = logits[static_cast<size_t>(chosen)];
  result.chosen = static_cast<double>(logit) - total;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] > logit || (logits[id] == logit && id < static_cast<size_t>(chosen))) ++result.rank;
  }
  result.top = most_likely(logits, std::min(static_cast<size_t>(top_count), logits.size()), total);
  return result;
}

}  // namespace

TokenHistory::TokenHistory(size_t vocab_size) : generated_(vocab_size), is_noted_(vocab_size) {
  ids_.reserve(vocab_size);
}

void TokenHistory::note(int32_t id) {
  TIDEPOOL_CHECK(id >= 0 && static_cast<size_t>(id) < is_noted_.size(), "a token of the history is in the vocabulary");
  if (is_noted_[static_cast<size_t>(id)] != 0) return;
  is_noted_[static_cast<size_t>(id)] = 1;
  ids_.push_back(id);
}

void TokenHistory::add_prompt(int32_t id) {
  note(id);
}

void TokenHistory::add_generated(int32_t id) {
  note(id);
  ++generated_[static_cast<size_t>(id)];
}

void TokenHistory::penalise(const SamplingParams& params, std::span<float> logits) const {
  TIDEPOOL_CHECK(logits.size() == generated_.size(), "one logit for each token of the vocabulary");
  const auto repetition = static_cast<float>(params.repetition_penalty);
  for (const int32_t id : ids_) {
    float& logit = logits[static_cast<size_t>(id)];
    const uint32_t count = generated_[static_cast<size_t>(id)];
    const bool is_ruled_out = logit == -std::numeric_limits<float>::infinity();
    logit = logit > 0 ? logit / repetition : logit * repetition;
    logit -= static_cast<float>(params.frequency_penalty * count);
    if (count > 0) logit -= static_cast<float>(params.presence_penalty);
    // A penalty near zero overflows: the token is then as likely or unlikely as can be said, not infinitely so. What a
    // constraint has ruled out stays out.
    constexpr float kLargest = std::numeric_limits<float>::max();
    if (!is_ruled_out) logit = std::clamp(logit, -kLargest, kLargest);
  }
}

int32_t argmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
}

SampledToken Sampler::sample(const SampleRequest& request) {
  const SamplingParams& params = *request.params;
  check_logits(request.logits);
  SampledToken result;
  result.id = request.forced ? *request.forced : choose(request);
  if (params.top_logprobs) result.logprobs = make_logprobs(request.logits, result.id, *params.top_logprobs);
  return result;
}

int32_t Sampler::choose(const SampleRequest& request) {
  const std::optional<std::span<const float>> logits = try_adjust(request);
  if (!logits) {
    throw Error(ErrorCode::kNumeric,
                "no token is left to choose: constraint and forbidden tokens exclude all of them (for a grammar the "
                "vocabulary needs a token for every byte)");
  }
  if (request.params->is_greedy()) return argmax(*logits);
  weigh(*logits, *request.params);
  if (request.drafted == nullptr) return draw_token(request.draw);
  const DraftedToken& drafted = *request.drafted;
  double total = 0;
  double weight = 0;
  for (const Candidate& candidate : weights_) {
    total += candidate.weight;
    if (candidate.id == drafted.id) weight = candidate.weight;
  }
  if (request.stands_draw * drafted.probability(drafted.id) * total < weight) return drafted.id;
  subtract_draft(drafted);
  return draw_token(request.draw);
}

std::optional<DraftedToken> Sampler::draft(const SampleRequest& request, std::span<float> weights) {
  check_logits(request.logits);
  const std::optional<std::span<const float>> logits = try_adjust(request);
  if (!logits) return std::nullopt;
  if (request.params->is_greedy()) return DraftedToken{.id = argmax(*logits)};
  weigh(*logits, *request.params);
  // What is drawn from are the weights as they are kept, so that they say how likely the token was to the last bit.
  std::ranges::fill(weights, 0.0F);
  DraftedToken result{.weights = weights};
  for (Candidate& candidate : weights_) {
    const auto kept = static_cast<float>(candidate.weight);
    weights[static_cast<size_t>(candidate.id)] = kept;
    candidate.weight = kept;
    result.total += candidate.weight;
  }
  result.id = draw_token(request.draw);
  return result;
}

/// The logits after constraint, bias and penalties; the model's own memory when there are none. Nothing when they leave
/// no token.
std::optional<std::span<const float>> Sampler::try_adjust(const SampleRequest& request) {
  const SamplingParams& params = *request.params;
  const bool is_plain = request.constraint == nullptr && request.forbidden.empty() && params.logit_bias.empty() &&
                        !params.has_penalties();
  if (is_plain) return request.logits;
  logits_.assign(request.logits.begin(), request.logits.end());
  if (request.constraint != nullptr) request.constraint->mask(logits_);
  for (const int32_t id : request.forbidden)
    logits_[static_cast<size_t>(id)] = kImpossible;
  for (const auto& [id, bias] : params.logit_bias)
    logits_[static_cast<size_t>(id)] += static_cast<float>(bias);
  if (params.has_penalties()) {
    TIDEPOOL_CHECK(request.history != nullptr, "penalties need a history");
    request.history->penalise(params, logits_);
  }
  if (*std::ranges::max_element(logits_) == kImpossible) return std::nullopt;
  return logits_;
}

/// Candidates in the order in which the filters keep them.
bool Sampler::is_before(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
}

/// The last member of the smallest leading set that holds `mass`, by quickselect: each round drops the part that is
/// surely in or surely out. Rounding may leave the set a hair short of the mass; then it is everything.
Sampler::Candidate Sampler::nucleus_end(std::span<Candidate> candidates, double mass) {
  constexpr size_t kSortedBelow = 32;  // sorting so few costs less than another split
  while (candidates.size() > kSortedBelow) {
    Candidate& middle = candidates[candidates.size() / 2];
    Candidate& last = candidates.back();
    if (is_before(middle, candidates.front())) std::swap(middle, candidates.front());
    if (is_before(last, candidates.front())) std::swap(last, candidates.front());
    if (is_before(middle, last)) std::swap(middle, last);
    const Candidate pivot = last;  // the median of the three
    size_t count = 0;
    double leading = 0;
    for (size_t i = 0; i + 1 < candidates.size(); ++i) {
      if (!is_before(candidates[i], pivot)) continue;
      leading += candidates[i].weight;
      std::swap(candidates[i], candidates[count++]);
    }
    if (leading >= mass) {
      candidates = candidates.first(count);
      continue;
    }
    mass -= leading + pivot.weight;
    if (mass <= 0 || count + 1 == candidates.size()) return pivot;
    candidates = candidates.subspan(count, candidates.size() - 1 - count);
  }
  std::sort(candidates.begin(), candidates.end(), is_before);
  for (const Candidate& candidate : candidates) {
    mass -= candidate.weight;
    if (mass <= 0) return candidate;
  }
  return candidates.back();
}

/// The least likely candidate that top_k and top_p keep, out of selection_.
Sampler::Candidate Sampler::last_kept(const SamplingParams& params) {
  std::span<Candidate> kept = selection_;
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < kept.size()) {
    const auto count = static_cast<size_t>(params.top_k);
    std::nth_element(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(count - 1), kept.end(), is_before);
    kept = kept.first(count);
    if (params.top_p >= 1) return kept.back();
    // How the others were left lying is the library's choice, and the sum below depends on the order.
    std::ranges::sort(kept, {}, &Candidate::id);
  }
  double total = 0;
  for (const Candidate& candidate : kept)
    total += candidate.weight;
  return nucleus_end(kept, params.top_p * total);
}

/// The tokens that temperature and filters leave, to weights_.
void Sampler::weigh(std::span<const float> logits, const SamplingParams& params) {
  const auto largest = static_cast<double>(*std::ranges::max_element(logits));
  weights_.clear();
  weights_.reserve(logits.size());
  for (size_t id = 0; id < logits.size(); ++id) {
    const double weight = std::exp((static_cast<double>(logits[id]) - largest) / params.temperature);
    if (weight > 0 && weight >= params.min_p) weights_.push_back({weight, static_cast<int32_t>(id)});
  }
  if (params.top_k > 0 || params.top_p < 1) {
    selection_.reserve(logits.size());
    selection_ = weights_;
    const Candidate last = last_kept(params);
    std::erase_if(weights_, [&](const Candidate& candidate) { return is_before(last, candidate); });
  }
}

/// weights_ become what the target leaves over the draft, as probabilities. When a draft is refused there is always
/// something, but for rounding; then the target itself is as good.
void Sampler::subtract_draft(const DraftedToken& drafted) {
  double total = 0;
  for (const Candidate& candidate : weights_)
    total += candidate.weight;
  selection_ = weights_;
  bool has_rest = false;
  for (Candidate& candidate : weights_) {
    candidate.weight = std::max(candidate.weight / total - drafted.probability(candidate.id), 0.0);
    has_rest = has_rest || candidate.weight > 0;
  }
  if (!has_rest) weights_.swap(selection_);
}

/// Draws from weights_ in ascending order of id, so that the result does not depend on how the filters shuffled the
/// candidates.
int32_t Sampler::draw_token(double draw) const {
  double total = 0;
  for (const Candidate& candidate : weights_)
    total += candidate.weight;
  double passed = 0;
  int32_t last = weights_.back().id;
  for (const Candidate& candidate : weights_) {
    if (candidate.weight <= 0) continue;
    passed += candidate.weight;
    last = candidate.id;
    if (passed > draw * total) break;
  }
  return last;  // draw is below 1, but draw * total may round up to total; then it is the last one possible
}

}  // namespace tidepool
