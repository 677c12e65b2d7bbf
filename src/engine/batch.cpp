#include "engine/batch.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace tidepool {
namespace {

/// Weight of the newest measurement: a change shows after a few calls, one slow call does not last.
constexpr double kNewest = 0.2;

void blend(double& average, double value) {
  average = average == 0 ? value : average + kNewest * (value - average);
}

}  // namespace

std::vector<BatchPart> plan_batch(std::span<const BatchEntry> entries, const BatchLimits& limits) {
  std::vector<size_t> order(entries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto rank = [&](size_t index) {
    const BatchEntry& entry = entries[index];
    return std::tuple(entry.prompt_tokens > 0, entry.priority, entry.last_service, entry.arrival);
  };
  std::ranges::sort(order, {}, rank);
  std::vector<BatchPart> parts;
  int64_t left = limits.tokens_max;
  bool is_limited = false;  // somebody writes
  int64_t prompt_left = limits.prompt_tokens_max;
  for (const size_t index : order) {
    const BatchEntry& entry = entries[index];
    const bool writes = entry.prompt_tokens == 0;
    const int64_t wanted = writes ? entry.decode_rows : entry.prompt_tokens;
    const int64_t room = writes || !is_limited ? left : std::min(left, prompt_left);
    const int64_t tokens = std::min(wanted, room);
    // A step is taken whole or not at all, except that the first always fits.
    if (tokens <= 0 || (writes && tokens < wanted && !parts.empty())) continue;
    parts.push_back({index, tokens});
    left -= tokens;
    if (writes) {
      is_limited = true;
    } else {
      prompt_left -= tokens;
    }
  }
  return parts;
}

void PrefillBudget::note(int64_t prompt_tokens, int64_t decode_rows, double seconds) {
  if (prompt_tokens == 0) {
    blend(step_seconds_, seconds);
    return;
  }
  const double step = decode_rows > 0 ? step_seconds_ : 0;
  const double added = std::max(seconds - step, 0.0);
  blend(prompt_token_seconds_, added / static_cast<double>(prompt_tokens));
}

int64_t PrefillBudget::tokens() const {
  if (share_ <= 0) return 0;
  const int64_t least = std::min(kTokensMin, tokens_max_);
  if (share_ >= 1) return tokens_max_;
  if (step_seconds_ == 0 || prompt_token_seconds_ == 0) {
    return std::max(least, static_cast<int64_t>(share_ * static_cast<double>(tokens_max_)));
  }
  const double seconds = step_seconds_ * share_ / (1 - share_);
  const double tokens = std::min(seconds / prompt_token_seconds_, static_cast<double>(tokens_max_));
  return std::max(least, static_cast<int64_t>(tokens));
}

}  // namespace tidepool
