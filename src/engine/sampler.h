#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/sampler_params.h"

namespace tidepool {

/// A token and the natural logarithm of its probability.
struct TokenLogprob {
  int32_t id = 0;
  double logprob = 0;
  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};

/// Of the distribution the model gave: before bias, penalties, temperature and truncation (vLLM's `raw_logprobs`).
struct Logprobs {
  double chosen = 0;              ///< of the token that was taken
  int64_t rank = 0;               ///< how many tokens were more likely than it, equals with a lower id included
  std::vector<TokenLogprob> top;  ///< the most likely ones, most likely first, lowest id first among equals
};

struct SampledToken {
  int32_t id = 0;
  std::optional<Logprobs> logprobs;
};

/// Which tokens of a sequence occurred, for the penalties.
class TokenHistory {
 public:
  explicit TokenHistory(size_t vocab_size);

  /// `id` in [0, vocab_size).
  void add_prompt(int32_t id);
  void add_generated(int32_t id);
  /// Applies repetition, frequency and presence penalty, in this order. logits [vocab_size]. Touches only tokens that
  /// occurred.
  void penalise(const SamplingParams& params, std::span<float> logits) const;

 private:
  void note(int32_t id);

  std::vector<uint32_t> generated_;  ///< by id
  std::vector<uint8_t> is_noted_;    ///< by id
  std::vector<int32_t> ids_;         ///< that occurred, each once
};

/// What else may restrict the next token: a grammar, say. Asked before every token.
class LogitsConstraint {
 public:
  LogitsConstraint() = default;
  virtual ~LogitsConstraint() = default;
  LogitsConstraint(const LogitsConstraint&) = delete;
  LogitsConstraint& operator=(const LogitsConstraint&) = delete;

  /// Sets the logits of forbidden tokens to -infinity, be it all of them, and leaves the others alone. logits [vocab].
  virtual void mask(std::span<float> logits) = 0;
  /// The token that was taken.
  virtual void accept(int32_t id) = 0;

  /// Whether accepted tokens can be taken back. Then drafts are held to the constraint while they are made, which saves
  /// those that it would refuse; otherwise it meets them when they are taken.
  [[nodiscard]] virtual bool can_rollback() const { return false; }
  /// Takes back the last `count` tokens accepted.
  virtual void rollback(size_t count) { (void)count; }
};

/// A token proposed for a position, and the distribution it was drawn from.
struct DraftedToken {
  int32_t id = 0;
  /// Relative probabilities of all tokens, [vocab]; empty when there was no choice but `id`. Borrowed.
  std::span<const float> weights{};
  double total = 0;  ///< sum of the weights

  /// The probability with which `token` was drafted.
  [[nodiscard]] double probability(int32_t token) const {
    if (weights.empty()) return token == id ? 1 : 0;
    return static_cast<double>(weights[static_cast<size_t>(token)]) / total;
  }
};

/// What one draw depends on; all borrowed.
struct SampleRequest {
  std::span<const float> logits;  ///< [vocab], as the model gave them; -infinity means impossible
  const SamplingParams* params = nullptr;
  const TokenHistory* history = nullptr;    ///< needed when params has penalties
  LogitsConstraint* constraint = nullptr;   ///< may be null; its accept() is the caller's to call
  std::span<const int32_t> forbidden = {};  ///< ids that must not be taken
  double draw = 0;                          ///< uniform in [0, 1); unused when greedy
  std::optional<int32_t> forced{};          ///< taken whatever the logits say; they must be usable all the same
  const DraftedToken* drafted = nullptr;    ///< a proposal; may be null
  double stands_draw = 0;                   ///< uniform in [0, 1), independent of `draw`; used with a proposal
};

/// Chooses tokens. A token is a pure function of its request; the object holds scratch memory only, [2 * vocab]
/// entries, obtained at the first call. Time is linear in the vocabulary. One thread at a time.
class Sampler {
 public:
  /// Throws Error(kNumeric): a logit is NaN or +infinity, or all are -infinity, be it from the model or because
  /// constraint and forbidden ids leave none.
  /// A proposal does not change the distribution of the result: it is taken with probability min(1, p / q), where p is
  /// its probability here and q the one it was drafted with, and otherwise a token is drawn from max(0, p - q). When
  /// greedy it has no influence at all. (Leviathan, Kalman and Matias, "Fast inference from transformers via
  /// speculative decoding", 2023)
  [[nodiscard]] SampledToken sample(const SampleRequest& request);

  /// Proposes a token from a draft head's logits, as sample() would take one; `forced`, `drafted` and params'
  /// top_logprobs do not count. Unless greedy, `weights` [vocab] are filled and become the result's. Nothing when
  /// constraint and forbidden ids leave no token: the sequence may never come here.
  [[nodiscard]] std::optional<DraftedToken> draft(const SampleRequest& request, std::span<float> weights);

 private:
  struct Candidate {
    double weight = 0;  ///< exp((logit - max) / temperature)
    int32_t id = 0;
  };
  [[nodiscard]] int32_t choose(const SampleRequest& request);
  [[nodiscard]] std::optional<std::span<const float>> try_adjust(const SampleRequest& request);
  void weigh(std::span<const float> logits, const SamplingParams& params);
  [[nodiscard]] int32_t draw_token(double draw) const;
  void subtract_draft(const DraftedToken& drafted);
  [[nodiscard]] Candidate last_kept(const SamplingParams& params);
  [[nodiscard]] static bool is_before(const Candidate& a, const Candidate& b);
  [[nodiscard]] static Candidate nucleus_end(std::span<Candidate> candidates, double mass);

  std::vector<float> logits_;         ///< [vocab], adjusted
  std::vector<Candidate> weights_;    ///< possible tokens in ascending order of id
  std::vector<Candidate> selection_;  ///< the same in no order
};

/// Index of the largest value, the lowest one among equals. `logits` is not empty.
[[nodiscard]] int32_t argmax(std::span<const float> logits);

}  // namespace tidepool
