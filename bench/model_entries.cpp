#include <fmt/format.h>
#include <sys/statvfs.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/temp_folder.h"
#include "bench/suite_internal.h"
#include "engine/prefill.h"
#include "model/model.h"
#include "model/moe.h"

namespace tidepool::bench {
namespace {

/// Memory-backed if there is room, so that weights are in RAM and no disk is worn.
std::filesystem::path storage_root() {
  constexpr uint64_t kNeeded = uint64_t{8} << 30;
  struct statvfs space {};
  const bool has_room = ::statvfs("/dev/shm", &space) == 0 && uint64_t{space.f_bavail} * space.f_frsize > kNeeded;
  return has_room ? "/dev/shm" : std::filesystem::temp_directory_path();
}

}  // namespace

std::unique_ptr<Model> make_cut_model(const CutModel& cut) {
  // What is open stays when the folder goes, and a run that is killed leaves no gigabytes behind.
  const TempFolder folder(storage_root());
  write_cut_model(cut, folder.path());
  return std::make_unique<Model>(Checkpoint::open(folder.path()), std::vector<int32_t>{});
}

namespace {

/// The cut model, made when first asked for and shared by the entries of one suite.
class LazyCutModel {
 public:
  const Model& get() {
    if (!model_) model_ = make_cut_model({.experts = 48});
    return *model_;
  }

 private:
  std::unique_ptr<Model> model_;
};

size_t scale_bytes(const MatrixView& matrix) {
  switch (matrix.format) {
    case MatrixFormat::kFp8Tile32: return (matrix.out + 31) / 32 * ((matrix.in + 31) / 32);
    case MatrixFormat::kFp4Block32: return matrix.out * (matrix.in / 32);
    case MatrixFormat::kBf16:
    case MatrixFormat::kFloat32: return 0;
  }
  return 0;
}

double matrix_bytes(const MatrixView& matrix) {
  return static_cast<double>(matrix.out * matrix_row_bytes(matrix.format, matrix.in) + scale_bytes(matrix));
}

double expert_bytes(const ExpertWeights& expert) {
  return matrix_bytes(expert.w1) + matrix_bytes(expert.w2) + matrix_bytes(expert.w3);
}

/// Weights that one token's MoE reads.
double moe_bytes(const Model& model, const LayerWeights& layer) {
  return static_cast<double>(model.config().num_experts_per_tok) * expert_bytes(layer.moe.experts.front()) +
         expert_bytes(layer.moe.shared) + matrix_bytes(layer.moe.gate);
}

/// Weights of a layer's attention and hyper-connections.
double attention_bytes(const LayerWeights& layer) {
  const AttentionWeights& a = layer.attention;
  double bytes = 0;
  for (const MatrixView& m : {a.wq_a, a.wq_b, a.wkv, a.wo_a, a.wo_b, layer.attn_hc.fn, layer.ffn_hc.fn}) {
    bytes += matrix_bytes(m);
  }
  if (a.compressor) bytes += matrix_bytes(a.compressor->wkv) + matrix_bytes(a.compressor->wgate);
  if (a.index_key) bytes += matrix_bytes(a.index_key->wk);
  if (a.index_query) bytes += matrix_bytes(a.index_query->wq_b) + matrix_bytes(a.index_query->weights_proj);
  return bytes;
}

/// All weights of the layers, which a prompt of many tokens reads once if what is read stays.
double layer_bytes(const Model& model) {
  double bytes = 0;
  for (const LayerWeights& layer : model.weights().layers) {
    bytes += attention_bytes(layer) + expert_bytes(layer.moe.shared) + matrix_bytes(layer.moe.gate);
    for (const ExpertWeights& expert : layer.moe.experts)
      bytes += expert_bytes(expert);
  }
  return bytes;
}

/// Weights that one decode step reads.
double decode_bytes(const Model& model) {
  double bytes = matrix_bytes(model.weights().head);
  for (const LayerWeights& layer : model.weights().layers)
    bytes += attention_bytes(layer) + moe_bytes(model, layer);
  return bytes;
}

constexpr double kMoeRowOperations = 2.0 * (7 * 3 * 5120 * 2304 + 48 * 5120);
constexpr double kHeadOperations = 2.0 * 129280 * 5120;
/// A multiplication and an addition for each weight of a layer that a token meets in attention and MoE; compressors and
/// indexers (under 2 %) are left out.
constexpr double kLayerOperations = 2 * 126.617e6 + kMoeRowOperations;

std::vector<InputToken> tokens_of(const Model& model, size_t count) {
  std::vector<InputToken> tokens(count);
  uint32_t state = 7;
  for (InputToken& token : tokens) {
    state = state * 1664525U + 1013904223U;
    token.id = static_cast<int32_t>(state % static_cast<uint32_t>(model.config().vocab_size));
  }
  return tokens;
}

/// `rows` rows of normalised input for a layer, and a pass that carries them.
struct LayerInput {
  LayerInput(const Model& model, Arena& arena, size_t rows)
      : state(model.new_sequence()),
        x(arena.matrix(rows, model.pass_shape().hidden)),
        y(arena.matrix(rows, model.pass_shape().hidden)) {
    const std::vector<InputToken> tokens = tokens_of(model, rows);
    state.append(tokens);
    pass = make_pass(arena, {{&state, 0, rows, 0}}, model.pass_shape(), model.ropes());
    uint32_t random = 11;
    for (size_t row = 0; row < rows; ++row) {
      for (float& value : x.row(row)) {
        random = random * 1664525U + 1013904223U;
        value = round_bf16(static_cast<float>(random >> 8) / 8388608.0F - 1.0F);
      }
    }
  }
  SequenceState state;
  ForwardPass pass;
  Span2d<float> x;
  Span2d<float> y;
};

Result moe_layer_n1(const Workbench& bench, const Model& model) {
  Arena arena;
  const Math math(bench.runtime(), model.options().numerics);
  LayerInput input(model, arena, 64);  // 64 different tokens, so that experts are random
  ForwardPass one = make_pass(arena, {{&input.state, 0, 1, 0}}, model.pass_shape(), model.ropes());
  size_t row = 0;
  const size_t layers = model.weights().layers.size();
  const auto round = [&] {
    for (size_t i = 0; i < 32; ++i, ++row) {
      const size_t layer = row % layers;
      mixture_of_experts(math, model.moe(), model.weights().layers[layer].moe, layer, one,
                         input.x.row_range(row % 64, 1), input.y.row_range(0, 1));
    }
  };
  return against_bandwidth(bench, {.shape = "6 of 48 experts and the shared one, one row, as the engine runs them",
                                   .bytes = 32 * moe_bytes(model, model.weights().layers.front()),
                                   .operations = 32 * kMoeRowOperations,
                                   .run = round});
}

Result fp4_grouped_n256(const Workbench& bench, const Model& model) {
  constexpr size_t kRows = 256;
  Arena arena;
  const Math math(bench.runtime(), model.options().numerics);
  LayerInput input(model, arena, kRows);
  const MoeWeights& moe = model.weights().layers[0].moe;
  const double bytes = static_cast<double>(moe.experts.size()) * expert_bytes(moe.experts.front()) +
                       expert_bytes(moe.shared) + matrix_bytes(moe.gate) + 2.0 * sizeof(float) * kRows * 5120;
  return against_peak(bench,
                      {.shape = "256 rows, 6 of 48 experts and the shared one, with routing and gathering",
                       .repeats = 3,
                       .bytes = bytes,
                       .operations = kRows * kMoeRowOperations,
                       .run = [&] { mixture_of_experts(math, model.moe(), moe, 0, input.pass, input.x, input.y); }});
}

/// Reads `tokens` into a new sequence and returns the seconds it took.
double prefill_seconds(const Workbench& bench, const Model& model, Arena& arena, std::span<const InputToken> tokens,
                       Replay replay) {
  SequenceState state = model.new_sequence();
  PrefillOptions options;
  options.replay = replay;
  return seconds_of([&] {
    (void)prefill(model, bench.runtime(), arena, state, tokens, options,
                  [](int64_t, Span2d<const float>, size_t) { return true; });
  });
}

Result decode_step_cut4(const Workbench& bench, const Model& model) {
  Arena arena;
  SequenceState state = model.new_sequence();
  const std::vector<InputToken> tokens = tokens_of(model, 512 + 64);
  PrefillOptions options;
  (void)prefill(model, bench.runtime(), arena, state, std::span(tokens).first(512), options,
                [](int64_t, Span2d<const float>, size_t) { return true; });
  size_t next = 512;
  return against_bandwidth(bench, {.shape = "one token behind 512, four layers and the head",
                                   .repeats = 31,
                                   .bytes = decode_bytes(model),
                                   .operations = 4 * kLayerOperations + kHeadOperations,
                                   .run = [&] {
                                     const Arena::Scope scope(arena);
                                     const ForwardRequest request{&state, std::span(tokens).subspan(next++, 1), 0, 1};
                                     (void)forward(model, bench.runtime(), arena, {&request, 1});
                                   }});
}

/// Nanoseconds inside each kind of kernel, all threads added up.
struct KernelClock {
  std::atomic<int64_t> fp8{0}, fp4{0}, bf16{0}, f32{0}, attention{0}, index{0}, rows{0};
};

/// The clock of the one profiled run at a time; kernels are plain functions and can carry nothing.
KernelClock& kernel_clock() {
  static KernelClock clock;
  return clock;
}
const kernels::KernelTable*& profiled_table() {
  static const kernels::KernelTable* table = nullptr;
  return table;
}

template <typename Call>
void timed(std::atomic<int64_t>& sum, Call call) noexcept {
  const auto start = std::chrono::steady_clock::now();
  call();
  sum += std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
}

/// `table` with a clock around every kernel.
kernels::KernelTable profiled(const kernels::KernelTable& table) {
  profiled_table() = &table;
  kernels::KernelTable result = table;
  result.linear_fp8 = [](const kernels::LinearArgs& args) noexcept {
    timed(kernel_clock().fp8, [&] { profiled_table()->linear_fp8(args); });
  };
  result.linear_fp4 = [](const kernels::LinearArgs& args) noexcept {
    timed(kernel_clock().fp4, [&] { profiled_table()->linear_fp4(args); });
  };
  result.linear_bf16 = [](const kernels::LinearArgs& args) noexcept {
    timed(kernel_clock().bf16, [&] { profiled_table()->linear_bf16(args); });
  };
  result.linear_f32 = [](const kernels::LinearArgs& args) noexcept {
    timed(kernel_clock().f32, [&] { profiled_table()->linear_f32(args); });
  };
  result.sparse_attention = [](const kernels::AttentionArgs& args) noexcept {
    timed(kernel_clock().attention, [&] { profiled_table()->sparse_attention(args); });
  };
  result.index_scores = [](const kernels::IndexScoreArgs& args) noexcept {
    timed(kernel_clock().index, [&] { profiled_table()->index_scores(args); });
  };
  return result;
}

constexpr size_t kPrefillTokens = 2048;
constexpr size_t kCedTokens = 8192;

/// The shares of a prefill's time that each kind of kernel takes.
std::vector<std::pair<std::string, double>> split_by_kernel(const Workbench& bench, const Model& model, Arena& arena,
                                                            std::span<const InputToken> tokens) {
  const kernels::KernelTable table = profiled(bench.table);
  const Workbench with_clock{bench.pool, table, bench.machine, bench.bytes};
  KernelClock& clock = kernel_clock();
  for (std::atomic<int64_t>* sum : {&clock.fp8, &clock.fp4, &clock.bf16, &clock.f32, &clock.attention, &clock.index}) {
    *sum = 0;
  }
  const double seconds = prefill_seconds(with_clock, model, arena, tokens, Replay::kFull);
  const double thread_ns = seconds * 1e9 * static_cast<double>(bench.pool.thread_count());
  std::vector<std::pair<std::string, double>> split;
  double rest = 1;
  const auto add = [&](const char* name, const std::atomic<int64_t>& sum) {
    split.emplace_back(name, static_cast<double>(sum.load()) / thread_ns);
    rest -= split.back().second;
  };
  add("FP4 experts", clock.fp4);
  add("FP8 dense", clock.fp8);
  add("BF16", clock.bf16);
  add("hyper-connections", clock.f32);
  add("attention", clock.attention);
  add("index scores", clock.index);
  split.emplace_back("everything else", rest);
  return split;
}

Result prefill_cut4(const Workbench& bench, const Model& model) {
  Arena arena;
  const std::vector<InputToken> tokens = tokens_of(model, kPrefillTokens);
  (void)prefill_seconds(bench, model, arena, std::span(tokens).first(64), Replay::kFull);  // touches every page
  std::vector<std::pair<std::string, double>> split;
  // Two readings of a clock around a kernel's milliseconds do not show.
  Result result = against_peak(bench, {.shape = "2,048 tokens through all four layers",
                                       .repeats = 1,
                                       .warm_ups = 0,
                                       .bytes = layer_bytes(model),
                                       .operations = kPrefillTokens * 4 * kLayerOperations,
                                       .run = [&] { split = split_by_kernel(bench, model, arena, tokens); }});
  result.split = std::move(split);
  return result;
}

Result ced_ratio_8192(const Workbench& bench, const Model& model) {
  Arena arena;
  const std::vector<InputToken> tokens = tokens_of(model, kCedTokens);
  const double bounded = prefill_seconds(bench, model, arena, tokens, Replay::kBounded);
  const double full = prefill_seconds(bench, model, arena, tokens, Replay::kFull);
  constexpr double kBound = 0.55;
  const double ratio = bounded / full;
  Result result;
  result.shape = fmt::format(
      "prefill of 8,192 tokens: {:.1f} s with the decoder's last window, {:.1f} s through all layers", bounded, full);
  result.median = ratio;
  result.unit = "ratio";
  result.limit = "ced_bound";
  result.limit_value = kBound;
  result.share = kBound / ratio;
  result.split = {{"encoder rows", bounded / full}, {"decoder rows skipped", 1 - bounded / full}};
  return result;
}

}  // namespace

std::vector<Entry> model_entries() {
  const auto model = std::make_shared<LazyCutModel>();
  const auto with_model = [model](Result (*measure)(const Workbench&, const Model&)) {
    return [model, measure](const Workbench& bench) { return measure(bench, model->get()); };
  };
  return {
      {"moe_layer_n1", with_model(moe_layer_n1)},
      {"fp4_grouped_n256", with_model(fp4_grouped_n256)},
      {"decode_step_cut4", with_model(decode_step_cut4)},
      {"prefill_cut4", with_model(prefill_cut4), kPrefillTokens * 4 * kLayerOperations},
      {"vision_cut4", with_model(vision_cut4)},
      // Through all four layers, then through the two of the encoder.
      {"ced_ratio_8192", with_model(ced_ratio_8192), kCedTokens * (4 + 2) * kLayerOperations},
  };
}

}  // namespace tidepool::bench
