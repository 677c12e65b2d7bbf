#pragma once

#include <algorithm>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "engine/prefill.h"
#include "kv/kv_cache.h"
#include "model/golden_test_support.h"

/// What tests of the cache on the tiny golden model share.
namespace tidepool::cache_testing {

using Tokens = std::vector<InputToken>;

inline Tokens random_tokens(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Tokens tokens(count);
  for (InputToken& token : tokens)
    token.id = static_cast<int32_t>(3 + random() % 490);
  return tokens;
}

inline Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// The golden model and what it runs on.
struct GoldenEngine {
  explicit GoldenEngine(const kernels::KernelTable& table = kernels::select_kernels("auto"))
      : pool(1), runtime{pool, table}, model(golden::load_model("ckpt")) {}

  /// Reads the rest of a prompt; returns the logits of its last position.
  std::vector<float> read(SequenceState& state, std::span<const InputToken> prompt, Replay replay = Replay::kBounded,
                          size_t chunk = 512) {
    std::vector<float> last;
    PrefillOptions options;
    options.replay = replay;
    options.chunk = chunk;
    (void)prefill(model, runtime, arena, state, prompt.subspan(static_cast<size_t>(state.length())), options,
                  [&](int64_t, Span2d<const float> logits, size_t) {
                    if (logits.rows > 0) last.assign(logits.data, logits.data + logits.cols);
                    return true;
                  });
    return last;
  }
  /// Reads a prompt from its beginning.
  std::vector<float> read_cold(std::span<const InputToken> prompt, Replay replay, SequenceState* state = nullptr) {
    SequenceState cold = model.new_sequence();
    std::vector<float> logits = read(cold, prompt, replay);
    if (state != nullptr) *state = std::move(cold);
    return logits;
  }
  /// One token more, as in decoding.
  std::vector<float> step(SequenceState& state, const InputToken& token) {
    const Arena::Scope scope(arena);
    const ForwardRequest request{&state, {&token, 1}, 0, 1};
    const Span2d<const float> logits = forward(model, runtime, arena, {&request, 1});
    return {logits.data, logits.data + logits.cols};
  }

  std::unique_ptr<KvCache> make_cache(size_t blocks = 1000, size_t snapshot_bytes = size_t{64} << 20,
                                      std::shared_ptr<BlockStore> store = nullptr) const {
    KvCacheOptions options;
    options.ram_bytes = blocks * model.kv_layout()->block_bytes;
    options.snapshot_ram_bytes = snapshot_bytes;
    options.store = std::move(store);
    return std::make_unique<KvCache>(model.kv_layout(), options);
  }

  ThreadPool pool;
  Runtime runtime;
  Model model;
  Arena arena;
};

inline KvCache::Query query_of(std::span<const InputToken> prompt, bool exact = false) {
  KvCache::Query query;
  query.text.tokens = prompt;
  query.exact_replay = exact;
  return query;
}

}  // namespace tidepool::cache_testing
