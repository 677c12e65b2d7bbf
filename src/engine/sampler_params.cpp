#include "engine/sampler_params.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>

#include "base/error.h"

namespace tidepool {
namespace {

/// `range` is how messages write it; `is_inside` is false for NaN.
void check_field(std::string_view field, double value, bool is_inside, std::string_view range) {
  if (is_inside) return;
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{} is {}; it must be {}", field, value, range));
}

void check_logit_bias(const SamplingParams& params, size_t vocab_size) {
  std::vector<int32_t> ids;
  for (const auto& [id, bias] : params.logit_bias) {
    if (id < 0 || static_cast<size_t>(id) >= vocab_size) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("logit_bias names token {}; the model has tokens 0 to {}", id, vocab_size - 1));
    }
    check_field(fmt::format("logit_bias of token {}", id), bias, bias >= -kLogitBiasMax && bias <= kLogitBiasMax,
                "from -100 to 100");
    ids.push_back(id);
  }
  std::ranges::sort(ids);
  const auto repeated = std::ranges::adjacent_find(ids);
  if (repeated != ids.end())
    throw Error(ErrorCode::kInvalidArgument, fmt::format("logit_bias names token {} twice", *repeated));
}

}  // namespace

void check_sampling_params(const SamplingParams& params, size_t vocab_size) {
  check_field("temperature", params.temperature, params.temperature >= 0 && params.temperature <= 2, "from 0 to 2");
  check_field("top_p", params.top_p, params.top_p > 0 && params.top_p <= 1, "above 0 and at most 1");
  check_field("top_k", static_cast<double>(params.top_k), params.top_k >= -1, "0 or -1 (all tokens), or positive");
  check_field("min_p", params.min_p, params.min_p >= 0 && params.min_p <= 1, "from 0 to 1");
  const auto is_penalty = [](double value) { return value >= -2 && value <= 2; };
  check_field("presence_penalty", params.presence_penalty, is_penalty(params.presence_penalty), "from -2 to 2");
  check_field("frequency_penalty", params.frequency_penalty, is_penalty(params.frequency_penalty), "from -2 to 2");
  check_field("repetition_penalty", params.repetition_penalty,
              params.repetition_penalty > 0 && params.repetition_penalty <= 2, "above 0 and at most 2");
  check_logit_bias(params, vocab_size);
  if (params.seed > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("seed is {}; it must be below 2^63", params.seed));
  }
  if (params.top_logprobs && (*params.top_logprobs < 0 || *params.top_logprobs > kTopLogprobsMax)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("top_logprobs is {}; it must be from 0 to {}", *params.top_logprobs, kTopLogprobsMax));
  }
}

}  // namespace tidepool
