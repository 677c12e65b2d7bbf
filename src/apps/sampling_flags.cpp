#include "apps/sampling_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <random>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace tidepool {
namespace {

template <typename T>
bool parse_whole(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

std::pair<int32_t, double> parse_logit_bias(std::string_view text) {
  const size_t colon = text.find(':');
  std::pair<int32_t, double> bias;
  if (colon != std::string_view::npos && parse_whole(text.substr(0, colon), bias.first) &&
      parse_whole(text.substr(colon + 1), bias.second)) {
    return bias;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--logit-bias \"{}\": write a token id and its bias, as in 1234:-5.5", text));
}

/// A seed that a JSON number carries without loss.
uint64_t draw_seed() {
  std::random_device device;
  const uint64_t word = (uint64_t{device()} << 32U) | device();
  return word >> 11U;
}

}  // namespace

void add_sampling_flags(CLI::App& command, SamplingFlags& flags) {
  command.add_option("--max-tokens", flags.max_tokens, "longest answer; default: what the context leaves");
  command.add_option("--min-tokens", flags.min_tokens, "shortest answer: no stop token before");
  command.add_option("--temperature", flags.temperature, "0 to 2; 0 takes the most likely token each time [1]");
  command.add_option("--top-p", flags.top_p, "smallest set of tokens with this share of the probability [1]");
  command.add_option("--top-k", flags.top_k, "only so many most likely tokens; 0 or -1: all [0]");
  command.add_option("--min-p", flags.min_p, "only tokens this likely, relative to the most likely one [0]");
  command.add_option("--presence-penalty", flags.presence_penalty, "-2 to 2, off tokens already written [0]");
  command.add_option("--frequency-penalty", flags.frequency_penalty, "-2 to 2, off for each time written [0]");
  command.add_option("--repetition-penalty", flags.repetition_penalty,
                     "above 0 to 2, divides tokens of prompt and answer [1]");
  command.add_option("--logit-bias", flags.logit_bias, "ID:BIAS adds BIAS (-100 to 100) to a token; repeatable")
      ->take_all();
  command.add_option("--seed", flags.seed, "same seed, same text; default: a new one each time");
  command.add_option("--stop", flags.stops, "text that ends the answer and is not part of it; repeatable")->take_all();
  command.add_flag("--ignore-eos", flags.ignores_end, "go on behind the model's own end");
}

void apply_sampling_flags(const SamplingFlags& flags, const GenerationDefaults& defaults, GenerationOptions& options) {
  SamplingParams params = defaults.sampling();
  params.temperature = flags.temperature.value_or(params.temperature);
  params.top_p = flags.top_p.value_or(params.top_p);
  params.top_k = flags.top_k.value_or(params.top_k);
  params.min_p = flags.min_p.value_or(params.min_p);
  params.presence_penalty = flags.presence_penalty.value_or(params.presence_penalty);
  params.frequency_penalty = flags.frequency_penalty.value_or(params.frequency_penalty);
  params.repetition_penalty = flags.repetition_penalty.value_or(params.repetition_penalty);
  for (const std::string& bias : flags.logit_bias)
    params.logit_bias.push_back(parse_logit_bias(bias));
  params.seed = flags.seed ? *flags.seed : draw_seed();
  if (flags.stops.size() > kStopsMax) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--stop is given {} times; at most {} stop strings", flags.stops.size(), kStopsMax));
  }
  options.sampling = std::move(params);
  options.max_tokens = flags.max_tokens;
  options.min_tokens = flags.min_tokens.value_or(0);
  if (flags.ignores_end) options.stop_ids.clear();
}

}  // namespace tidepool
