#include "model/engram_hash.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"

namespace tidepool {

namespace {

__extension__ typedef unsigned __int128 Uint128;  // NOLINT(modernize-use-using): __extension__ needs a typedef

/// NumPy's default generator: SeedSequence (four 32-bit words of state) feeding PCG64 (XSL-RR 128/64).
class NumpyGenerator {
 public:
  explicit NumpyGenerator(uint32_t seed) {
    std::array<uint32_t, 4> pool{};
    mix_entropy(seed, pool);
    const std::array<uint64_t, 4> words = generate_words(pool);
    increment_ = ((static_cast<Uint128>(words[2]) << 64 | words[3]) << 1) | 1;
    step();
    state_ += static_cast<Uint128>(words[0]) << 64 | words[1];
    step();
  }

  uint64_t next() {
    step();
    const auto high = static_cast<uint64_t>(state_ >> 64);
    const auto low = static_cast<uint64_t>(state_);
    const auto rotation = static_cast<unsigned>(state_ >> 122);
    const uint64_t mixed = high ^ low;
    return mixed >> rotation | mixed << ((64 - rotation) & 63);
  }

  /// Uniform in [0, range), Lemire's method as NumPy applies it to ranges above 2^32.
  uint64_t bounded(uint64_t range) {
    const uint64_t threshold = (0 - range) % range;  // 2^64 mod range
    while (true) {
      const Uint128 product = static_cast<Uint128>(next()) * range;
      if (static_cast<uint64_t>(product) >= threshold) return static_cast<uint64_t>(product >> 64);
    }
  }

 private:
  static void mix_entropy(uint32_t seed, std::array<uint32_t, 4>& pool) {
    uint32_t constant = 0x43b0d7e5U;
    const auto hashmix = [&constant](uint32_t value) {
      value ^= constant;
      constant *= 0x931e8875U;
      value *= constant;
      return value ^ value >> 16;
    };
    for (size_t i = 0; i < pool.size(); ++i)
      pool[i] = hashmix(i == 0 ? seed : 0);
    for (size_t source = 0; source < pool.size(); ++source) {
      for (size_t target = 0; target < pool.size(); ++target) {
        if (source == target) continue;
        const uint32_t mixed = 0xca01f9ddU * pool[target] - 0x4973f715U * hashmix(pool[source]);
        pool[target] = mixed ^ mixed >> 16;
      }
    }
  }

  static std::array<uint64_t, 4> generate_words(const std::array<uint32_t, 4>& pool) {
    uint32_t constant = 0x8b51f9ddU;
    std::array<uint64_t, 4> words{};
    for (size_t i = 0; i < 8; ++i) {
      uint32_t value = pool[i % 4] ^ constant;
      constant *= 0x58f38dedU;
      value *= constant;
      value ^= value >> 16;
      words[i / 2] |= static_cast<uint64_t>(value) << (i % 2 == 0 ? 0 : 32);
    }
    return words;
  }

  void step() {
    constexpr Uint128 kMultiplier = static_cast<Uint128>(0x2360ed051fc65da4U) << 64 | 0x4385df649fccf645U;
    state_ = state_ * kMultiplier + increment_;
  }

  Uint128 state_ = 0;
  Uint128 increment_ = 0;
};

bool is_prime(int64_t value) {
  if (value < 2) return false;
  for (int64_t divisor = 2; divisor * divisor <= value; ++divisor) {
    if (value % divisor == 0) return false;
  }
  return true;
}

std::vector<int64_t> make_multipliers(int64_t layer_id, int64_t count, int64_t compressed_vocab) {
  constexpr int64_t kSeedPerLayer = 10007;
  const int64_t bound = std::numeric_limits<int64_t>::max() / compressed_vocab / 2;
  NumpyGenerator generator(static_cast<uint32_t>(kSeedPerLayer * layer_id));
  std::vector<int64_t> result;
  for (int64_t i = 0; i < count; ++i) {
    result.push_back(2 * static_cast<int64_t>(generator.bounded(static_cast<uint64_t>(bound))) + 1);
  }
  return result;
}

/// The next `count` primes from `from` on that no table uses yet.
void take_primes(int64_t from, int64_t count, std::set<int64_t>& used, std::vector<int64_t>& out) {
  for (int64_t candidate = from; count > 0; ++candidate) {
    if (!is_prime(candidate) || used.contains(candidate)) continue;
    used.insert(candidate);
    out.push_back(candidate);
    --count;
  }
}

}  // namespace

EngramHash::EngramHash(const EngramConfig& config, std::vector<int32_t> token_map)
    : max_ngram_(config.max_ngram_size),
      heads_(config.n_heads),
      columns_(static_cast<size_t>((config.max_ngram_size - 1) * config.n_heads)),
      token_map_(std::move(token_map)) {
  if (config.pad_token_id < 0 || static_cast<size_t>(config.pad_token_id) >= token_map_.size()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("engram_pad_token_id {} is not a token of the tokenizer, which has {}; tokenizer.json and "
                            "config.json do not belong together",
                            config.pad_token_id, token_map_.size()));
  }
  const int64_t compressed = *std::ranges::max_element(token_map_) + int64_t{1};
  if (compressed != config.compressed_vocab_size) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("the tokenizer gives {} compressed Engram ids, config.json says "
                            "engram_compressed_vocab_size {}; tokenizer.json and config.json do not belong together",
                            compressed, config.compressed_vocab_size));
  }
  pad_ = token_map_[static_cast<size_t>(config.pad_token_id)];
  std::set<int64_t> used;
  for (size_t slot = 0; slot < config.layer_ids.size(); ++slot) {
    Layer layer;
    for (int64_t order = 2; order <= max_ngram_; ++order) {
      take_primes(config.vocab_size - 1, heads_, used, layer.primes);
    }
    int64_t rows = 0;
    for (const int64_t prime : layer.primes) {
      layer.offsets.push_back(rows);
      rows += prime;
    }
    if (rows != config.num_embeddings[slot]) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("the Engram table of layer {} needs {} rows by its primes, config.json says "
                              "engram_num_embeddings {}",
                              config.layer_ids[slot], rows, config.num_embeddings[slot]));
    }
    layer.multipliers = make_multipliers(config.layer_ids[slot], max_ngram_, config.compressed_vocab_size);
    layers_.push_back(std::move(layer));
  }
}

void EngramHash::hash(const Layer& layer, std::span<const int64_t> ids, std::span<int64_t> out) const {
  bool is_blocked = false;
  uint64_t rolling = 0;  // products stay below 2^63 by the choice of multipliers
  for (int64_t back = 0; back < max_ngram_; ++back) {
    const int64_t id = ids[static_cast<size_t>(back)];
    is_blocked = is_blocked || id < 0;
    const auto term = static_cast<uint64_t>((is_blocked ? pad_ : id) * layer.multipliers[static_cast<size_t>(back)]);
    rolling = back == 0 ? term : rolling ^ term;
    if (back == 0) continue;
    for (int64_t head = 0; head < heads_; ++head) {
      const auto column = static_cast<size_t>((back - 1) * heads_ + head);
      out[column] = static_cast<int64_t>(rolling % static_cast<uint64_t>(layer.primes[column])) + layer.offsets[column];
    }
  }
}

void EngramHash::rows(size_t slot, std::span<const InputToken> tokens, int64_t position, std::span<int64_t> out) const {
  std::array<int64_t, 16> ids{};
  TIDEPOOL_CHECK(max_ngram_ <= static_cast<int64_t>(ids.size()), "the config was checked for the n-gram size");
  for (int64_t back = 0; back < max_ngram_; ++back) {
    const int64_t at = position - back;
    const bool is_dead = at < 0 || tokens[static_cast<size_t>(at)].is_image;
    ids[static_cast<size_t>(back)] = is_dead ? -1 : token_map_[static_cast<size_t>(tokens[static_cast<size_t>(at)].id)];
  }
  hash(layers_[slot], ids, out);
}

void EngramHash::rows_of_compressed(size_t slot, std::span<const int32_t> compressed, int64_t position,
                                    std::span<int64_t> out) const {
  std::array<int64_t, 16> ids{};
  for (int64_t back = 0; back < max_ngram_; ++back) {
    const int64_t at = position - back;
    ids[static_cast<size_t>(back)] = at < 0 ? -1 : compressed[static_cast<size_t>(at)];
  }
  hash(layers_[slot], ids, out);
}

}  // namespace tidepool
