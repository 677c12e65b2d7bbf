// A bounded replay against a slow computation that knows no rings, no resumed states and no cache: every row of every
// position lies in a plain table, and what a position sees is written as a mask.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "engine/cache_test_support.h"
#include "kernels/top_k.h"
#include "model/block.h"
#include "model/embedding.h"
#include "model/head.h"

namespace tidepool {
namespace {

using cache_testing::GoldenEngine;
using cache_testing::query_of;
using cache_testing::random_tokens;
using cache_testing::Tokens;

using Bytes = std::vector<std::byte>;

/// Global entries and index keys of one source, by number.
struct GlobalRows {
  std::map<int64_t, Bytes> entries;
  std::map<int64_t, Bytes> keys;
};

/// Runs positions [begin, end) of `tokens` through the model with masked windows: position i sees the window rows j
/// with begin <= j <= i and j > i - window. Global rows of positions below `global_end` are given and stay as they are.
class MaskedRun {
 public:
  MaskedRun(GoldenEngine& engine, std::span<const InputToken> tokens, int64_t begin, int64_t global_end,
            std::vector<GlobalRows> global)
      : engine_(engine),
        model_(engine.model),
        math_(engine.runtime, engine.model.options().numerics),
        layout_(*engine.model.kv_layout()),
        text_(engine.model.new_sequence()),
        begin_(begin),
        global_end_(global_end),
        global_(std::move(global)) {
    text_.append(tokens);  // what Engram reads; no row is ever put into this state
    global_.resize(layout_.sources.size());
  }

  /// Logits of the last position; the decoder sees its last `decoder_rows` positions only.
  std::vector<float> run(int64_t decoder_rows) {
    const Arena::Scope scope(engine_.arena);
    const LayerTable& table = model_.layer_table();
    ForwardPass pass = make_rows(begin_);
    embed_tokens(model_, math_, pass);
    for (size_t layer = 0; layer < table.decoder_begin; ++layer) {
      enter_layer(model_, math_, layer, pass);
      if (table.layers[layer].mode == LayerMode::kFull) write_global(layer, pass);
      run_masked_layer(layer, pass);
    }
    enter_layer(model_, math_, table.decoder_begin, pass);
    write_global(table.decoder_begin, pass);
    const std::vector<int64_t> from = {text_.length() - decoder_rows};
    ForwardPass decoder = narrow_pass(pass, from, model_.pass_shape(), model_.ropes());
    for (size_t layer = table.decoder_begin; layer < table.layers.size(); ++layer) {
      if (layer > table.decoder_begin) enter_layer(model_, math_, layer, decoder);
      run_masked_layer(layer, decoder);
    }
    const Span2d<float> logits = engine_.arena.matrix(1, static_cast<size_t>(model_.config().vocab_size));
    const std::vector<size_t> last = {decoder.rows - 1};
    compute_logits(model_, math_, decoder, last, logits);
    return {logits.data, logits.data + logits.cols};
  }

  [[nodiscard]] const std::vector<GlobalRows>& global() const { return global_; }

 private:
  ForwardPass make_rows(int64_t begin) {
    std::vector<PassSegment> segments = {{&text_, 0, static_cast<size_t>(text_.length() - begin), begin}};
    return make_pass(engine_.arena, std::move(segments), model_.pass_shape(), model_.ropes());
  }

  template <typename Run>
  void sublayer(const ForwardPass& pass, const HyperConnectionWeights& weights, const Bf16* norm, Run run) {
    const Arena::Scope scope(engine_.arena);
    const HyperConnectionMix mix = hyper_connection_mix(math_, model_.hyper_connection(), weights, pass);
    const Span2d<float> x = engine_.arena.matrix(pass.rows, model_.pass_shape().hidden);
    collapse_streams(math_, model_.hyper_connection(), pass.stream, pass.pre_mix, x);
    math_.rms_norm_rows(x, norm, model_.norm_eps(), x);
    const Span2d<float> y = engine_.arena.matrix(pass.rows, model_.pass_shape().hidden);
    run(x, y);
    expand_streams(math_, model_.hyper_connection(), mix, y, pass.stream);
    for (size_t row = 0; row < pass.rows; ++row)
      std::ranges::copy(mix.pre.row(row), pass.pre_mix.row(row).begin());
  }

  void run_masked_layer(size_t layer, ForwardPass& pass) {
    const LayerWeights& weights = model_.weights().layers[layer];
    sublayer(pass, weights.attn_hc, weights.attn_norm,
             [&](Span2d<const float> x, Span2d<float> y) { attend_masked(layer, pass, x, y); });
    sublayer(pass, weights.ffn_hc, weights.ffn_norm, [&](Span2d<const float> x, Span2d<float> y) {
      mixture_of_experts(math_, model_.moe(), weights.moe, layer, pass, x, y);
    });
  }

  void rotate(const RopeTable& rope, int64_t position, std::span<float> values, float sign) {
    std::vector<float> cos(rope.pairs());
    std::vector<float> sin(rope.pairs());
    rope.angles(position, cos, sin);
    math_.kernels().rope(values.data() + values.size() - 2 * rope.pairs(), cos.data(), sin.data(), rope.pairs(), sign);
    math_.round(values);
  }

  /// The entries and keys of the groups that lie within the rows, above what is given.
  void write_global(size_t layer, ForwardPass& pass) {
    const Arena::Scope scope(engine_.arena);
    const LayerPlan& plan = model_.layer_table().layers[layer];
    const AttentionWeights& weights = model_.weights().layers[layer].attention;
    const KvSource& source = layout_.sources[plan.kv_slot];
    const Span2d<float> x = attention_input(model_, math_, layer, pass);
    const Span2d<float> kv = engine_.arena.matrix(pass.rows, source.entry_width);
    const Span2d<float> gate = engine_.arena.matrix(pass.rows, source.entry_width);
    math_.linear_unrounded(weights.compressor->wkv, x, kv);
    if (plan.ratio > 1) math_.linear_unrounded(weights.compressor->wgate, x, gate);
    const Span2d<float> latent = engine_.arena.matrix(1, source.entry_width);
    const Span2d<float> key = engine_.arena.matrix(1, source.key_width);
    const int64_t first = std::max(global_end_, begin_);
    for (int64_t entry = first / plan.ratio; (entry + 1) * plan.ratio <= text_.length(); ++entry) {
      const auto row = static_cast<size_t>(entry * plan.ratio - pass.position(0));
      for (size_t c = 0; c < latent.cols; ++c) {
        latent.row(0)[c] = kv.row(row)[c];
        if (plan.ratio == 1) continue;
        const float a = gate.row(row)[c];
        const float b = gate.row(row + 1)[c];
        const float ea = std::exp(a - std::max(a, b));
        const float eb = std::exp(b - std::max(a, b));
        latent.row(0)[c] = kv.row(row)[c] * (ea / (ea + eb)) + kv.row(row + 1)[c] * (eb / (ea + eb));
      }
      math_.round(latent.row(0));
      math_.rms_norm_rows(latent, weights.compressor->norm, model_.norm_eps(), latent);
      math_.linear(weights.index_key->wk, latent, key);
      math_.rms_norm_rows(key, weights.index_key->k_norm, model_.norm_eps(), key);
      rotate(model_.ropes().global, entry * plan.ratio, latent.row(0), 1.0F);
      rotate(model_.ropes().global, entry * plan.ratio, key.row(0), 1.0F);
      GlobalRows& rows = global_[plan.kv_slot];
      rows.entries[entry].resize(source.entry_bytes);
      rows.keys[entry].resize(source.key_bytes);
      pack_row(source.entry_format, latent.row(0), rows.entries[entry]);
      pack_row(source.key_format, key.row(0), rows.keys[entry]);
    }
  }

  void attend_masked(size_t layer, ForwardPass& pass, Span2d<const float> x, Span2d<float> y) {
    const Arena::Scope scope(engine_.arena);
    const LayerPlan& plan = model_.layer_table().layers[layer];
    const AttentionConfig& config = model_.attention();
    const AttentionWeights& weights = model_.weights().layers[layer].attention;
    const RopeTable& rope = plan.mode == LayerMode::kWindow ? model_.ropes().window : model_.ropes().global;
    const Span2d<float> grid = copy_of(x);
    math_.quantise_rows(grid);
    const Span2d<float> latent = engine_.arena.matrix(pass.rows, weights.wq_a.out);
    const Span2d<float> kv = engine_.arena.matrix(pass.rows, config.head_dim);
    math_.linear(weights.wq_a, grid, latent);
    math_.linear(weights.wkv, grid, kv);
    math_.rms_norm_rows(latent, weights.q_norm, config.norm_eps, latent);
    math_.quantise_rows(latent);
    math_.rms_norm_rows(kv, weights.kv_norm, config.norm_eps, kv);
    std::vector<Bytes> window(pass.rows, Bytes(layout_.window_row_bytes));
    for (size_t row = 0; row < pass.rows; ++row) {
      rotate(rope, pass.position(row), kv.row(row), 1.0F);
      pack_row(layout_.window_format, kv.row(row), window[row]);
    }
    if (weights.index_query) select(layer, pass, latent, x);
    const Span2d<float> q = engine_.arena.matrix(pass.rows, weights.wq_b.out);
    const Span2d<float> o = engine_.arena.matrix(pass.rows, weights.wq_b.out);
    math_.linear(weights.wq_b, latent, q);
    for (size_t row = 0; row < pass.rows; ++row) {
      for (size_t head = 0; head < config.heads; ++head)
        rotate(rope, pass.position(row), q.row(row).subspan(head * config.head_dim, config.head_dim), 1.0F);
      attend_row(layer, pass, row, window, q.row(row), o.row(row));
      math_.round(o.row(row));
      for (size_t head = 0; head < config.heads; ++head)
        rotate(rope, pass.position(row), o.row(row).subspan(head * config.head_dim, config.head_dim), -1.0F);
    }
    project(weights, o, y);
  }

  void attend_row(size_t layer, const ForwardPass& pass, size_t row, const std::vector<Bytes>& window,
                  std::span<const float> q, std::span<float> out) {
    const LayerPlan& plan = model_.layer_table().layers[layer];
    const AttentionConfig& config = model_.attention();
    const int64_t i = pass.position(row);
    std::vector<const std::byte*> local;
    for (size_t other = 0; other < pass.rows; ++other) {
      const int64_t j = pass.position(other);
      if (j <= i && j > i - layout_.window) local.push_back(window[other].data());  // the mask
    }
    std::vector<const std::byte*> far;
    if (plan.mode != LayerMode::kWindow) {
      for (const int64_t entry : chosen_.at(i))
        far.push_back(global_[plan.kv_slot].entries.at(entry).data());
    }
    std::vector<float> scratch(kernels::attention_scratch_floats(config.heads, config.head_dim));
    kernels::AttentionArgs args;
    args.q = q.data();
    args.heads = config.heads;
    args.width = config.head_dim;
    args.window = {local.data(), local.size(), layout_.window_format};
    if (!far.empty()) args.global = {far.data(), far.size(), layout_.sources[plan.kv_slot].entry_format};
    args.sink = model_.weights().layers[layer].attention.sink;
    args.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
    args.round_probabilities = true;
    args.out = out.data();
    args.scratch = scratch.data();
    math_.kernels().sparse_attention(args);
  }

  /// Which entries each row reads, by scores of every visible one.
  void select(size_t layer, ForwardPass& pass, Span2d<const float> latent, Span2d<const float> x) {
    const LayerPlan& plan = model_.layer_table().layers[layer];
    const AttentionConfig& config = model_.attention();
    const IndexQueryWeights& weights = *model_.weights().layers[layer].attention.index_query;
    const Span2d<float> q = engine_.arena.matrix(pass.rows, weights.wq_b.out);
    const Span2d<float> head_weights = engine_.arena.matrix(pass.rows, weights.weights_proj.out);
    math_.linear(weights.wq_b, latent, q);
    math_.linear(weights.weights_proj, x, head_weights);
    const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.index_head_dim)) /
                                          std::sqrt(static_cast<double>(config.index_heads)));
    for (size_t row = 0; row < pass.rows; ++row) {
      const int64_t i = pass.position(row);
      for (size_t head = 0; head < config.index_heads; ++head) {
        const std::span<float> one = q.row(row).subspan(head * config.index_head_dim, config.index_head_dim);
        rotate(model_.ropes().global, i, one, 1.0F);
        Bytes packed(row_bytes(layout_.sources[plan.kv_slot].key_format, one.size()));
        pack_row(layout_.sources[plan.kv_slot].key_format, one, packed);
        unpack_row(layout_.sources[plan.kv_slot].key_format, packed, one);
      }
      for (float& weight : head_weights.row(row))
        weight *= scale;
      math_.round(head_weights.row(row));
      choose(plan, i, q.row(row), head_weights.row(row));
    }
  }

  void choose(const LayerPlan& plan, int64_t position, std::span<const float> q, std::span<const float> weights) {
    const AttentionConfig& config = model_.attention();
    const KvSource& source = layout_.sources[plan.kv_slot];
    const auto visible = static_cast<size_t>((position + 1) / plan.ratio);
    std::vector<float> scores(visible);
    std::vector<float> scratch(kernels::index_scratch_floats(config.index_head_dim));
    for (size_t entry = 0; entry < visible; ++entry) {
      const Bytes& key = global_[plan.kv_slot].keys.at(static_cast<int64_t>(entry));
      const kernels::KeyRun run = {key.data(), 1};
      math_.kernels().index_scores({q.data(), weights.data(), config.index_heads, config.index_head_dim, &run, 1,
                                    key.size(), source.key_format, true, &scores[entry], scratch.data()});
    }
    if (plan.makes_candidates) pools_[position] = pool_of(scores);
    if (plan.uses_candidates && pools_.at(position)) {
      for (size_t entry = 0; entry < visible; ++entry) {
        const auto block = static_cast<uint32_t>(static_cast<int64_t>(entry) / config.candidates.block_size);
        const auto& pool = *pools_.at(position);
        if (std::ranges::find(pool, block) == pool.end()) scores[entry] = -std::numeric_limits<float>::infinity();
      }
    }
    std::vector<uint32_t> best(config.index_topk);
    best.resize(kernels::select_top_k(scores, config.index_topk, best));
    chosen_[position].assign(best.begin(), best.end());
  }

  [[nodiscard]] std::optional<std::vector<uint32_t>> pool_of(const std::vector<float>& scores) const {
    const CandidatePoolConfig& config = model_.attention().candidates;
    std::vector<uint32_t> blocks(static_cast<size_t>(config.blocks_max));
    std::vector<float> scratch;
    const int32_t count = choose_candidate_blocks(config, scores, blocks, scratch);
    if (count < 0) return std::nullopt;
    blocks.resize(static_cast<size_t>(count));
    return blocks;
  }

  void project(const AttentionWeights& weights, Span2d<const float> o, Span2d<float> y) {
    const size_t groups = model_.attention().groups;
    const size_t rank = weights.wo_a.out / groups;
    const Span2d<float> low = engine_.arena.matrix(o.rows, weights.wo_a.out);
    for (size_t group = 0; group < groups; ++group) {
      math_.linear(weights.wo_a.rows(group * rank, rank), o.col_range(group * weights.wo_a.in, weights.wo_a.in),
                   low.col_range(group * rank, rank));
    }
    math_.quantise_rows(low);
    math_.linear(weights.wo_b, low, y);
  }

  Span2d<float> copy_of(Span2d<const float> x) {
    const Span2d<float> copy = engine_.arena.matrix(x.rows, x.cols);
    for (size_t row = 0; row < x.rows; ++row)
      std::ranges::copy(x.row(row), copy.row(row).begin());
    return copy;
  }

  GoldenEngine& engine_;
  const Model& model_;
  Math math_;
  const KvLayout& layout_;
  SequenceState text_;
  int64_t begin_;
  int64_t global_end_;
  std::vector<GlobalRows> global_;
  std::map<int64_t, std::vector<int64_t>> chosen_;                 ///< entries each position reads, ascending
  std::map<int64_t, std::optional<std::vector<uint32_t>>> pools_;  ///< nothing: everything visible is in it
};

class BoundedReplay : public testing::Test {
 protected:
  static void expect_same_global(const SequenceState& state, const std::vector<GlobalRows>& rows) {
    for (size_t s = 0; s < rows.size(); ++s) {
      const KvSource& source = state.layout().sources[s];
      for (int64_t entry = 0; entry < state.length() / source.ratio; ++entry) {
        const Bytes& expected = rows[s].entries.at(entry);
        const Bytes& key = rows[s].keys.at(entry);
        ASSERT_TRUE(std::equal(expected.begin(), expected.end(), state.entry(s, entry))) << s << ", " << entry;
        ASSERT_TRUE(std::equal(key.begin(), key.end(), state.key(s, entry))) << s << ", " << entry;
      }
    }
  }

  GoldenEngine engine_{kernels::reference_kernels()};
  Tokens tokens_ = random_tokens(460, 1);
};

/// The slow run is what it claims to be: without a replay it gives what the engine gives.
TEST_F(BoundedReplay, MaskedRunEqualsTheEngineOnAColdPrompt) {
  for (const size_t length : {size_t{40}, size_t{97}}) {
    const std::span<const InputToken> prompt = std::span(tokens_).first(length);
    MaskedRun slow(engine_, prompt, 0, 0, {});
    EXPECT_EQ(slow.run(16), engine_.read_cold(prompt, Replay::kBounded));
  }
}

TEST_F(BoundedReplay, EqualsMaskedRecomputation) {
  for (const int64_t hit : {int64_t{128}, int64_t{256}}) {
    const std::span<const InputToken> known = std::span(tokens_).first(static_cast<size_t>(hit));
    SequenceState exact = engine_.model.new_sequence();
    (void)engine_.read_cold(known, Replay::kBounded, &exact);
    const std::unique_ptr<KvCache> cache = engine_.make_cache(100, 0);
    cache->publish(exact, {}, "", nullptr);
    MaskedRun cold(engine_, known, 0, 0, {});
    (void)cold.run(16);
    for (const int64_t suffix : {1, 15, 17, 40}) {
      const std::span<const InputToken> prompt = std::span(tokens_).first(static_cast<size_t>(hit + suffix));
      KvCache::Resumed warm = cache->resume(query_of(prompt));
      ASSERT_EQ(warm.report.hit_tokens, hit);
      ASSERT_EQ(warm.state.length(), hit - 16);
      ASSERT_FALSE(warm.report.is_exact);
      // Windows begin at hit - 16, global rows below the hit are those of the cold run.
      MaskedRun slow(engine_, prompt, hit - 16, hit, cold.global());
      const std::vector<float> logits = engine_.read(warm.state, prompt);
      EXPECT_EQ(logits, slow.run(16)) << hit << " + " << suffix;
      EXPECT_NE(logits, engine_.read_cold(prompt, Replay::kBounded)) << "a bounded replay is no exact one";
      expect_same_global(warm.state, slow.global());
    }
  }
}

}  // namespace
}  // namespace tidepool
