#include "train/compressor.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "train/row_blocks.h"

namespace tidepool {

namespace {

constexpr size_t kChannelCost = 30;  ///< operations for a channel of a token, mostly the exponential
constexpr size_t kRatioMax = 16;     ///< tokens of a group, at most

/// Shares of a group's tokens in one channel.
template <typename Real>
using Shares = std::array<Real, kRatioMax>;

/// softmax over the gates of `ratio` tokens from row `first` on.
template <typename Real>
Shares<Real> shares_of(const Span2d<Real>& gate, size_t first, size_t ratio, size_t channel) {
  Shares<Real> shares{};
  Real max = gate.at(first, channel);
  for (size_t i = 1; i < ratio; ++i)
    max = std::max(max, gate.at(first + i, channel));
  Real sum = 0;
  for (size_t i = 0; i < ratio; ++i) {
    shares[i] = std::exp(gate.at(first + i, channel) - max);
    sum += shares[i];
  }
  for (size_t i = 0; i < ratio; ++i)
    shares[i] /= sum;
  return shares;
}

/// body(entry, first row of its group) for every entry.
template <typename Real, typename Body>
void for_groups(const Tape<Real>& tape, const TokenGroups<Real>& groups, const Body& body) {
  const EntryRows& entries = *groups.entries;
  for (size_t s = 0; s < entries.samples.size(); ++s) {
    const EntryRows::Sample& sample = entries.samples[s];
    const size_t first_row = groups.rows->samples[s].begin;
    for_row_blocks(tape, sample.count, kChannelCost * entries.ratio * groups.kv.cols(), [&](size_t begin, size_t end) {
      for (size_t j = begin; j < end; ++j)
        body(sample.begin + j, first_row + j * entries.ratio);
    });
  }
}

}  // namespace

template <typename Real>
Value<Real> pool_groups(Tape<Real>& tape, const TokenGroups<Real>& groups) {
  const size_t ratio = groups.entries->ratio;
  TIDEPOOL_CHECK(ratio <= kRatioMax, "a group of more tokens than any release has");
  const Value<Real> latent = tape.make(groups.entries->rows, groups.kv.cols());
  for_groups(tape, groups, [&](size_t entry, size_t first) {
    for (size_t c = 0; c < latent.cols(); ++c) {
      const Shares<Real> shares = shares_of(groups.gate.data, first, ratio, c);
      Real sum = 0;
      for (size_t i = 0; i < ratio; ++i)
        sum += groups.kv.data.at(first + i, c) * shares[i];
      latent.data.at(entry, c) = sum;
    }
  });
  tape.on_backward([&tape, groups, latent, ratio] {
    for_groups(tape, groups, [&](size_t entry, size_t first) {
      for (size_t c = 0; c < latent.cols(); ++c) {
        const Shares<Real> shares = shares_of(groups.gate.data, first, ratio, c);
        const Real gradient = latent.grad.at(entry, c);
        for (size_t i = 0; i < ratio; ++i) {
          if (groups.kv.wants_grad()) groups.kv.grad.at(first + i, c) += gradient * shares[i];
          if (!groups.gate.wants_grad()) continue;
          groups.gate.grad.at(first + i, c) +=
              gradient * shares[i] * (groups.kv.data.at(first + i, c) - latent.data.at(entry, c));
        }
      }
    });
  });
  return latent;
}

template Value<float> pool_groups(Tape<float>&, const TokenGroups<float>&);
template Value<double> pool_groups(Tape<double>&, const TokenGroups<double>&);

}  // namespace tidepool
