#include "train/initial_values.h"

#include <algorithm>
#include <cmath>

#include "train/name_list.h"
#include "train/random_stream.h"

namespace tidepool {

namespace {

constexpr double kDeviation = 0.02;  // the released config's initializer_range
constexpr double kHyperScale = 0.01;
/// sigmoid(2) is 0.88, sigmoid(-2) is 0.12.
constexpr double kPreLogit = 2;
/// Of the diagonal of B before its softmax: e^4 against 1 leaves 95 % of a stream in its place (of four).
constexpr double kCombLogit = 4;

/// splitmix64, started from the seed and the name (FNV-1a).
class NamedRandom {
 public:
  NamedRandom(uint64_t seed, std::string_view name) : state_(seed * kSplitMixStep) {
    uint64_t hash = 0xcbf29ce484222325U;
    for (const char c : name)
      hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3U;
    state_ ^= hash;
  }
  /// Uniform in [-1, 1): exact in binary32, so the same on every machine.
  double value() {
    state_ += kSplitMixStep;
    const uint64_t z = split_mix(state_);
    return static_cast<double>(static_cast<int64_t>(z >> 40U) - (1 << 23U)) / (1 << 23U);
  }

 private:
  uint64_t state_;
};

template <typename Real>
void fill(const Span2d<Real>& values, double value) {
  for (size_t row = 0; row < values.rows; ++row)
    std::ranges::fill(values.row(row), static_cast<Real>(value));
}

template <typename Real>
void fill_uniform(const Span2d<Real>& values, double deviation, NamedRandom random) {
  const double half_width = deviation * std::sqrt(3.0);
  for (size_t row = 0; row < values.rows; ++row) {
    for (Real& value : values.row(row))
      value = static_cast<Real>(static_cast<float>(random.value() * half_width));
  }
}

/// The number behind the first dot of "layers.3.hc_attn_base".
size_t block_of(std::string_view name) {
  size_t number = 0;
  for (size_t i = name.find('.') + 1; i < name.size() && name[i] != '.'; ++i)
    number = number * 10 + static_cast<size_t>(name[i] - '0');
  return number;
}

/// Base of the coefficients of a sub-block: A [n], C [n], B [n, n].
template <typename Real>
void fill_hyper_base(const Span2d<Real>& base, std::string_view name, size_t n) {
  const size_t sub_block = 2 * block_of(name) + (name.ends_with("hc_ffn_base") ? 1 : 0);
  for (size_t j = 0; j < n; ++j) {
    base.at(0, j) = static_cast<Real>(j == sub_block % n ? kPreLogit : -kPreLogit);
    base.at(0, n + j) = 0;
    for (size_t k = 0; k < n; ++k)
      base.at(0, 2 * n + j * n + k) = static_cast<Real>(j == k ? kCombLogit : 0);
  }
}

template <typename Real>
void initialise_one(Parameter<Real>& parameter, const ModelConfig& config, uint64_t seed) {
  const std::string_view name = parameter.name;
  const Span2d<Real>& values = parameter.value.data;
  if (ends_with_any(name, {"norm.weight", "norm1.weight", "norm2.weight", "engram.q_weight", "engram.k_weight"}))
    return fill(values, 1);
  if (ends_with_any(name, {".bias", ".bias_vl", "attn_sink"})) return fill(values, 0);
  if (ends_with_any(name, {"hc_attn_scale", "hc_ffn_scale"})) return fill(values, kHyperScale);
  if (ends_with_any(name, {"hc_attn_base", "hc_ffn_base"}))
    return fill_hyper_base(values, name, static_cast<size_t>(config.hc_mult));
  const bool writes_streams =
      name.ends_with("wo_b.weight") || (name.find(".ffn.") != std::string_view::npos && name.ends_with("w2.weight"));
  const double sub_blocks = 2 * static_cast<double>(config.num_hidden_layers);
  fill_uniform(values, writes_streams ? kDeviation / std::sqrt(sub_blocks) : kDeviation, NamedRandom(seed, name));
}

}  // namespace

template <typename Real>
void initialise(ParameterSet<Real>& parameters, const ModelConfig& config, uint64_t seed) {
  for (Parameter<Real>& parameter : parameters.all())
    initialise_one(parameter, config, seed);
}

template void initialise(ParameterSet<float>&, const ModelConfig&, uint64_t);
template void initialise(ParameterSet<double>&, const ModelConfig&, uint64_t);

}  // namespace tidepool
