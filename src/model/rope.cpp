#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tidepool {

namespace {

/// The pair index whose wavelength makes `rotations` turns over the original context.
double correction_index(double rotations, int64_t dim, double base, double original) {
  return static_cast<double>(dim) * std::log(original / (rotations * 2 * std::numbers::pi)) / (2 * std::log(base));
}

}  // namespace

RopeTable::RopeTable(int64_t dim, double base, const YarnConfig* yarn) {
  for (int64_t i = 0; i < dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    inverse_frequencies_.push_back(1.0F / std::pow(static_cast<float>(base), exponent));
  }
  if (yarn == nullptr) return;
  const auto original = static_cast<double>(yarn->original_max_position_embeddings);
  const double low = std::max(std::floor(correction_index(yarn->beta_fast, dim, base, original)), 0.0);
  const double high =
      std::min(std::ceil(correction_index(yarn->beta_slow, dim, base, original)), static_cast<double>(dim - 1));
  const auto span = static_cast<float>(std::max(high - low, 1e-3));
  for (size_t i = 0; i < inverse_frequencies_.size(); ++i) {
    const float ramp = std::clamp((static_cast<float>(i) - static_cast<float>(low)) / span, 0.0F, 1.0F);
    const float smooth = 1.0F - ramp;
    const float frequency = inverse_frequencies_[i];
    inverse_frequencies_[i] = frequency / static_cast<float>(yarn->factor) * (1.0F - smooth) + frequency * smooth;
  }
}

void RopeTable::angles(int64_t position, std::span<float> cos, std::span<float> sin) const {
  for (size_t i = 0; i < inverse_frequencies_.size(); ++i) {
    const float angle = static_cast<float>(position) * inverse_frequencies_[i];
    cos[i] = static_cast<float>(std::cos(static_cast<double>(angle)));
    sin[i] = static_cast<float>(std::sin(static_cast<double>(angle)));
  }
}

RopeTables make_rope_tables(const ModelConfig& config) {
  return {RopeTable(config.qk_rope_head_dim, config.rope_theta, nullptr),
          RopeTable(config.qk_rope_head_dim, config.compress_rope_theta, &config.yarn)};
}

}  // namespace tidepool
