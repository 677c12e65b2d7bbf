#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tidepool {

/// A sequence that could take part in the next forward call, as the planner sees it.
struct BatchEntry {
  int64_t prompt_tokens = 0;  ///< of its prompt, not read yet; 0: it writes
  int64_t decode_rows = 1;    ///< of one step, when it writes: its last token, and drafts behind it
  int priority = 0;           ///< smaller comes first
  uint64_t last_service = 0;  ///< of all services that were given, the number of its last; 0: none
  uint64_t arrival = 0;
};

struct BatchLimits {
  int64_t tokens_max = 0;         ///< rows of one forward call
  int64_t prompt_tokens_max = 0;  ///< of those, prompt tokens while another sequence writes
};

/// What one sequence does in a forward call.
struct BatchPart {
  size_t entry = 0;  ///< index into the entries
  int64_t tokens = 0;
};

/// Chooses who takes part in the next forward call, and with how many tokens: first those that write, then prompts,
/// each group by priority, then by who waited longest for service, then by arrival. Nothing only when `entries` is
/// empty, or when prompts must wait for those that write (prompt_tokens_max 0).
[[nodiscard]] std::vector<BatchPart> plan_batch(std::span<const BatchEntry> entries, const BatchLimits& limits);

/// How many prompt tokens may ride along with sequences that write, so that these wait at most 1 / (1 - share) times as
/// long for their next token as they would alone. Learns from the forward calls what a step and a prompt token cost;
/// until it has seen both, the share counts in tokens.
class PrefillBudget {
 public:
  /// `share` in [0, 1]: 0 lets prompts wait until nobody writes, 1 sets no limit.
  PrefillBudget(double share, int64_t tokens_max) : share_(share), tokens_max_(tokens_max) {}

  /// A forward call with so many rows took so long.
  void note(int64_t prompt_tokens, int64_t decode_rows, double seconds);
  /// Prompt tokens of the next call in which others write; at least kTokensMin, unless the share is 0.
  [[nodiscard]] int64_t tokens() const;

  /// Fewer would hardly move a prompt while each still costs most of what a whole chunk does.
  static constexpr int64_t kTokensMin = 16;

 private:
  double share_;
  int64_t tokens_max_;
  double step_seconds_ = 0;          ///< of a call that only writes; 0: not seen yet
  double prompt_token_seconds_ = 0;  ///< what a prompt token adds to a call; 0: not seen yet
};

}  // namespace tidepool
