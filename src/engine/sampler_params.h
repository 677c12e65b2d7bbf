#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace tidepool {

/// How a token is chosen. Names, order of application and defaults are those of vLLM: bias, then penalties, then
/// temperature, then min_p, top_k and top_p.
struct SamplingParams {
  /// [0, 2]. Below kGreedyTemperature the most likely token is taken, lowest id first among equals.
  double temperature = 1;
  /// (0, 1]: the smallest set of most likely tokens whose share of the mass reaches this.
  double top_p = 1;
  /// The most likely tokens taken into account; 0 or -1 for all.
  int64_t top_k = 0;
  /// [0, 1]: tokens at least this likely, relative to the most likely one.
  double min_p = 0;
  /// [-2, 2], subtracted once for a token that was generated.
  double presence_penalty = 0;
  /// [-2, 2], subtracted for each time a token was generated.
  double frequency_penalty = 0;
  /// (0, 2]: logits of tokens of prompt or output are divided by it when positive, multiplied otherwise.
  double repetition_penalty = 1;
  /// Added to the logit of a token, [-100, 100]. An id at most once.
  std::vector<std::pair<int32_t, double>> logit_bias;
  /// Names the stream of random numbers; [0, 2^63).
  uint64_t seed = 0;
  /// Nothing: no log-probabilities. Otherwise that of the chosen token and of so many most likely ones, [0, 20].
  std::optional<int64_t> top_logprobs;

  [[nodiscard]] bool has_penalties() const {
    return presence_penalty != 0 || frequency_penalty != 0 || repetition_penalty != 1;
  }
  [[nodiscard]] bool is_greedy() const;
};

/// As in vLLM: dividing by less than this would only overflow.
inline constexpr double kGreedyTemperature = 1e-5;
inline constexpr int64_t kTopLogprobsMax = 20;
inline constexpr double kLogitBiasMax = 100;

inline bool SamplingParams::is_greedy() const {
  return temperature < kGreedyTemperature;
}

/// Throws Error(kInvalidArgument) naming the field, its value and its range.
void check_sampling_params(const SamplingParams& params, size_t vocab_size);

}  // namespace tidepool
