#include "train/training_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/folder_lock.h"
#include "model/vision.h"
#include "text/engram_token_map.h"
#include "text/tokenizer_control.h"
#include "train/draft.h"
#include "train/export.h"
#include "train/initial_values.h"
#include "train/mixture.h"
#include "train/model.h"
#include "train/optimizer.h"
#include "train/output_head.h"
#include "train/random_stream.h"
#include "train/run_state.h"

namespace tidepool {

namespace {

/// Weight of the balance loss. (published, docs/training.md)
constexpr double kBalanceWeight = 1e-4;
/// Weight of the indexers' loss. They get no other gradient and give none to the rest; their updates do not depend on
/// its size where gradients are not clipped by the norm of all.
constexpr double kIndexWeight = 1;

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

bool shows_pictures(const RecipeStage& stage) {
  return std::ranges::any_of(stage.mixture, [](const RecipePart& part) { return has_pictures(part.task); });
}

/// The parameters that a stage moves. The vision tower stands still where there is nothing to see: it would decay.
bool is_trained(const RecipeStage& stage, const std::string& name) {
  const bool is_draft = name.starts_with("mtp.");
  if (stage.trains == RecipeStage::Trains::kDrafts) return is_draft;
  return is_vision_parameter(name) ? shows_pictures(stage) : !is_draft;
}

SampleEncoding sample_encoding(const TrainingInputs& inputs) {
  if (!inputs.config.vision) return inputs.tokenizer;
  const std::optional<int32_t> placeholder = find_control_tokens(inputs.tokenizer).image;
  if (!placeholder) {
    throw Error(ErrorCode::kInvalidArgument,
                "the config has a vision_config, and the tokenizer no token that stands for a picture: train one with "
                "tidepool train tokenizer, or leave vision_config out");
  }
  if (placeholder != inputs.config.image_token_id) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("the tokenizer's token for a picture is {0}, and the config's image_token_id another one or "
                    "absent: set it to {0}",
                    *placeholder));
  }
  return {inputs.tokenizer, image_plan_config(*inputs.config.vision)};
}

std::vector<int32_t> engram_map(const TrainingInputs& inputs) {
  if (!inputs.config.engram) return {};
  return make_engram_token_map(inputs.tokenizer).compressed_ids;
}

void check_vocabulary(const TrainingInputs& inputs) {
  const auto tokens = static_cast<int64_t>(inputs.tokenizer.vocabulary_size());
  if (tokens == inputs.config.vocab_size) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("the tokenizer has {} tokens and the config's vocab_size is {}: set vocab_size to {}, or train "
                  "a tokenizer of that size",
                  tokens, inputs.config.vocab_size, tokens));
}

void add_loads(BiasLoads& sum, const BiasLoads& loads) {
  for (const auto& [name, counts] : loads) {
    std::vector<int64_t>& total = sum[name];
    total.resize(counts.size());
    for (size_t expert = 0; expert < counts.size(); ++expert)
      total[expert] += counts[expert];
  }
}

/// Of one part of a mixture.
struct PartSum {
  double loss = 0;
  size_t rows = 0;  ///< that were learnt from
};

/// What a step sums up over its batches.
struct StepSums {
  double loss = 0;
  double balance_loss = 0;
  double index_loss = 0;
  BiasLoads loads;
  std::map<std::string, PartSum> parts;
};

}  // namespace

void skip_prompts(TokenBatch& batch, size_t window) {
  for (TokenBatch::Segment& segment : batch.segments) {
    size_t given = 0;  // rows before the first that is learnt from
    while (given < segment.count && batch.weights[segment.begin + given] == 0)
      ++given;
    if (given == segment.count) continue;
    const size_t prompt = given + 1;  // that row still belongs to the prompt: it predicts the first answer
    segment.decoder_begin = prompt > window ? prompt - window : 0;
  }
}

struct TrainingRun::Impl {
  Impl(const TrainingInputs& inputs_in, TrainingRunOptions options_in, ThreadPool& pool_in);

  void check_stages() const;
  /// No sample may be longer than what the model is made for.
  void check_lengths(const RecipeStage& planned) const;
  /// Makes data and optimiser of the stage the state stands at.
  void begin_stage();
  [[nodiscard]] const RecipeStage& stage() const { return inputs.recipe.stages[state.stage]; }
  [[nodiscard]] std::vector<NamedBuffer> buffers();
  [[nodiscard]] std::filesystem::path file(const char* name) const { return options.folder / name; }

  [[nodiscard]] TrainingStep make_step();
  void train_backbone(const TokenBatch& batch, double weight_sum, double share, StepSums& sums);
  void train_drafts(const TokenBatch& batch, double share, StepSums& sums);
  void add_part_losses(const TokenBatch& batch, const BatchRows& rows, const RowTargets& targets,
                       std::span<const float> row_losses, StepSums& sums) const;
  [[nodiscard]] std::vector<TokenBatch> next_batches() const;
  [[nodiscard]] size_t window() const;  ///< rows
  [[nodiscard]] IndexTraining index_training() const;

  void save();
  void end_stage();
  /// Writes the model of a run that is done, whose folder has lost it.
  void export_finished();
  [[noreturn]] void refuse_state(std::string_view what) const;

  const TrainingInputs inputs;
  TrainingRunOptions options;
  ThreadPool& pool;
  ParameterSet<float> parameters;
  TrainingModel<float> model;
  std::optional<DraftParameters<float>> draft;
  Tape<float> tape;
  Tape<float> frozen_tape;  ///< the backbone's while drafts are trained
  std::unique_ptr<Mixture> mixture;
  std::unique_ptr<Optimizer> optimizer;
  RunState state;
  std::optional<FolderLock> lock;
  std::unique_ptr<TrainingLog> log;
  uint64_t steps_before = 0;
  uint64_t passes = 0;  ///< of this stage: what draws are seeded by
};

TrainingRun::Impl::Impl(const TrainingInputs& inputs_in, TrainingRunOptions options_in, ThreadPool& pool_in)
    : inputs(inputs_in),
      options(std::move(options_in)),
      pool(pool_in),
      parameters(inputs.config),
      model(inputs.config, engram_map(inputs), parameters),
      tape(pool, Tape<float>::Mode::kTraining, options.precision),
      frozen_tape(pool, Tape<float>::Mode::kForward, options.precision) {
  check_vocabulary(inputs);
  if (inputs.config.dspark) draft.emplace(bind_draft(parameters, inputs.config));
  check_stages();
  make_folder(options.folder);
  lock.emplace(options.folder, FolderPurpose{"this training run", "train into another folder (--out)"});
  remove_unfinished_files(options.folder);
  remove_unfinished_files(options.folder / "model");
  state.recipe = inputs.digest;
  const bool goes_on = std::filesystem::exists(file("state.safetensors"));
  if (goes_on) state = load_run_state(file("state.safetensors"), inputs.digest);
  log = std::make_unique<TrainingLog>(file("log.jsonl"), state.stage, state.step);
  if (state.stage > inputs.recipe.stages.size()) refuse_state("more stages than the recipe");
  for (uint64_t s = 0; s < state.stage; ++s)
    steps_before += static_cast<uint64_t>(inputs.recipe.stages[s].steps());
  if (state.stage == inputs.recipe.stages.size()) {
    if (!std::filesystem::exists(file("model") / "model.safetensors.index.json")) export_finished();
    return;
  }
  begin_stage();
  if (goes_on) {
    if (state.step > static_cast<uint64_t>(stage().steps())) refuse_state("more steps than its stage");
    load_run_buffers(file("state.safetensors"), buffers());
    optimizer->set_steps(static_cast<int64_t>(state.step));
    mixture->packer().seek(counters_position(state.counters));
    passes = state.step * (stage().step_rows / stage().batch_rows);
    steps_before += state.step;
  } else {
    initialise(parameters, inputs.config, inputs.recipe.seed);
  }
}

void TrainingRun::Impl::refuse_state(std::string_view what) const {
  throw Error(ErrorCode::kCorrupt, fmt::format("{} has {}; remove it to start from the beginning",
                                               file("state.safetensors").string(), what));
}

/// All of them before the first runs, as it may run for hours. How long the dialogues are of tasks without a length is
/// only known when they are drawn.
void TrainingRun::Impl::check_stages() const {
  const SampleEncoding encoding = sample_encoding(inputs);
  for (size_t s = 0; s < inputs.recipe.stages.size(); ++s) {
    const RecipeStage& planned = inputs.recipe.stages[s];
    if (planned.trains == RecipeStage::Trains::kDrafts && !draft) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("recipe {}, stage {} trains drafts, but the config has no draft head "
                              "(num_nextn_predict_layers): give it one, or leave the stage out",
                              inputs.recipe.name, planned.name));
    }
    if (static_cast<int64_t>(planned.sliding_window) > inputs.config.sliding_window) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("recipe {}, stage {} has a sliding_window of {}, and the config one of {}: a model is not "
                      "trained with more than it will see",
                      inputs.recipe.name, planned.name, planned.sliding_window, inputs.config.sliding_window));
    }
    check_mixture(inputs.recipe, s, encoding, inputs.corpus);
    check_lengths(planned);
  }
}

void TrainingRun::Impl::check_lengths(const RecipeStage& planned) const {
  for (size_t p = 0; p < planned.mixture.size(); ++p) {
    const RecipePart& part = planned.mixture[p];
    const bool has_length = part.task.empty() || takes_length(part.task);
    if (!has_length || static_cast<int64_t>(part.length_max) <= inputs.config.max_position_embeddings) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("recipe {}, stage {}, mixture[{}] has samples of up to {} tokens (its length, or batch_rows "
                    "where it has none), and the config's max_position_embeddings is {}: give it a length of "
                    "{} at most",
                    inputs.recipe.name, planned.name, p, part.length_max, inputs.config.max_position_embeddings,
                    inputs.config.max_position_embeddings));
  }
}

void TrainingRun::Impl::begin_stage() {
  mixture = std::make_unique<Mixture>(inputs.recipe, state.stage, sample_encoding(inputs), inputs.corpus, pool);
  OptimizerOptions optimizer_options;
  optimizer_options.clip_norm = stage().clip_norm;
  optimizer_options.matrices = stage().optimizer;
  optimizer_options.is_trained = [&now = stage()](const Parameter<float>& parameter) {
    return is_trained(now, parameter.name);
  };
  optimizer = std::make_unique<Optimizer>(pool, parameters, optimizer_options, options.precision);
  passes = 0;
}

std::vector<NamedBuffer> TrainingRun::Impl::buffers() {
  std::vector<NamedBuffer> all;
  const std::vector<Optimizer::State> remembered = optimizer->state();
  all.reserve(parameters.all().size() + remembered.size());
  for (Parameter<float>& parameter : parameters.all()) {
    const Span2d<float> values = parameter.value.data;
    all.push_back({parameter.name, {values.data, values.rows * values.cols}});
  }
  for (const Optimizer::State& part : remembered)
    all.push_back({part.name, part.values});
  return all;
}

std::vector<TokenBatch> TrainingRun::Impl::next_batches() const {
  std::vector<TokenBatch> batches;
  const size_t count = stage().step_rows / stage().batch_rows;
  batches.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    batches.push_back(mixture->packer().next());
    if (stage().replay == RecipeStage::Replay::kFull) continue;
    skip_prompts(batches.back(), window());
  }
  return batches;
}

size_t TrainingRun::Impl::window() const {
  const size_t rows = stage().sliding_window;
  return rows != 0 ? rows : static_cast<size_t>(inputs.config.sliding_window);
}

IndexTraining TrainingRun::Impl::index_training() const {
  return {.exploration = stage().exploration, .seed = RandomStream(inputs.recipe.seed, stage().name, passes).next()};
}

void TrainingRun::Impl::train_backbone(const TokenBatch& batch, double weight_sum, double share, StepSums& sums) {
  tape.clear();
  const PassOptions pass_options{
      .qat = stage().rounding, .index = index_training(), .window = window(), .balance_weight = kBalanceWeight * share};
  const BackbonePass<float> pass = model.run(tape, batch, pass_options);
  for (const IndexDivergence& divergence : index_losses(tape, *pass.attention, kIndexWeight * share))
    sums.index_loss += divergence.mean * share;
  const RowTargets targets = targets_of(batch, pass.rows(), 1 / weight_sum);
  const Value<float> head = quantised(tape, stage().rounding, parameters.get("head.weight"));
  const CrossEntropy<float> entropy = cross_entropy(tape, pass.hidden, head, {targets.ids, targets.weights});
  sums.loss += entropy.loss;
  add_part_losses(batch, pass.rows(), targets, entropy.row_losses, sums);
  tape.backward();
  sums.balance_loss += pass.balance_loss;
  add_loads(sums.loads, pass.loads);
}

void TrainingRun::Impl::add_part_losses(const TokenBatch& batch, const BatchRows& rows, const RowTargets& targets,
                                        std::span<const float> row_losses, StepSums& sums) const {
  for (size_t s = 0; s < rows.samples.size(); ++s) {
    PartSum& part = sums.parts[mixture->part_names()[batch.segments[s].part]];
    const SampleRows& sample = rows.samples[s];
    for (size_t row = sample.begin; row < sample.begin + sample.count; ++row) {
      if (targets.weights[row] == 0) continue;
      part.loss += static_cast<double>(row_losses[row]);
      ++part.rows;
    }
  }
}

void TrainingRun::Impl::train_drafts(const TokenBatch& batch, double share, StepSums& sums) {
  frozen_tape.clear();
  tape.clear();
  const BackbonePass<float> pass = model.run(frozen_tape, batch, {.qat = stage().rounding, .index = {}});
  const auto block_size = static_cast<size_t>(inputs.config.dspark->block_size);
  const uint64_t seed = RandomStream(inputs.recipe.seed, stage().name, passes).next();
  // As many blocks as would cover each token once.
  DraftBatch blocks = choose_draft_blocks(batch, pass.rows(), block_size, pass.rows().rows / block_size, seed);
  if (blocks.rows.empty()) return;
  // A step's loss is the mean over its batches, and its gradient that of the mean.
  for (double& weight : blocks.weights)
    weight *= share;
  const DraftOutput<float> output =
      run_draft(tape, model.attention(), *draft, {&pass.rows(), pass.taps}, blocks, kBalanceWeight * share);
  const DraftLoss loss = draft_losses(tape, model.attention(), *draft, pass.hidden, blocks, output);
  tape.backward();
  sums.loss += loss.total;
  sums.balance_loss += output.balance_loss;
  add_loads(sums.loads, output.loads);
}

TrainingStep TrainingRun::Impl::make_step() {
  const Clock::time_point start = options.clock();
  const std::vector<TokenBatch> batches = next_batches();
  double weight_sum = 0;
  uint64_t rows = 0;
  for (const TokenBatch& batch : batches) {
    weight_sum = std::accumulate(batch.weights.begin(), batch.weights.end(), weight_sum);
    rows += batch.rows();
  }
  StepSums sums;
  parameters.clear_gradients();
  for (const TokenBatch& batch : batches) {
    const double share = 1 / static_cast<double>(batches.size());
    if (stage().trains == RecipeStage::Trains::kDrafts) {
      train_drafts(batch, share, sums);
    } else {
      train_backbone(batch, weight_sum, share, sums);
    }
    ++passes;
  }
  const double rate = stage().schedule().at(static_cast<int64_t>(state.step));
  const Optimizer::Step moved = optimizer->step(rate, sums.loads);
  const double time = seconds(options.clock() - start);
  ++state.step;
  state.tokens += rows;
  state.seconds += time;
  std::map<std::string, double> part_losses;
  for (const auto& [name, part] : sums.parts) {
    if (part.rows > 0) part_losses[name] = part.loss / static_cast<double>(part.rows);
  }
  return {.stage = state.stage,
          .stage_name = stage().name,
          .step = state.step,
          .tokens = state.tokens,
          .loss = sums.loss,
          .balance_loss = sums.balance_loss,
          .index_loss = sums.index_loss,
          .rate = rate,
          .gradient_norm = moved.gradient_norm,
          .tokens_per_second = time > 0 ? static_cast<double>(rows) / time : 0,
          .part_losses = std::move(part_losses)};
}

void TrainingRun::Impl::save() {
  state.counters = position_counters(mixture->packer().position());
  log->sync();  // first: a state must not know of steps that the log does not
  save_run_state(file("state.safetensors"), state, buffers());
}

/// What a finished run left holds the parameters beside what the optimiser of its last stage remembered.
void TrainingRun::Impl::export_finished() {
  --state.stage;
  begin_stage();
  load_run_buffers(file("state.safetensors"), buffers());
  ++state.stage;
  export_model({inputs.config, inputs.tokenizer_json, file("model")}, parameters);
}

void TrainingRun::Impl::end_stage() {
  export_model({inputs.config, inputs.tokenizer_json, file("model")}, parameters);
  write_file_atomically(file("loss.svg"), loss_plot_svg(loss_curves(log->steps()), inputs.recipe.name));
  ++state.stage;
  state.step = 0;
  if (state.stage < inputs.recipe.stages.size()) begin_stage();
  save();
}

TrainingRun::TrainingRun(const TrainingInputs& inputs, TrainingRunOptions options, ThreadPool& pool)
    : impl_(std::make_unique<Impl>(inputs, std::move(options), pool)) {}
TrainingRun::~TrainingRun() = default;

uint64_t TrainingRun::steps_before() const {
  return impl_->steps_before;
}

size_t TrainingRun::parameter_count() const {
  return impl_->parameters.count();
}

bool TrainingRun::run(const std::stop_token& stop, const std::function<void(const TrainingProgress&)>& on_step) {
  Impl& impl = *impl_;
  const std::vector<RecipeStage>& stages = impl.inputs.recipe.stages;
  const int64_t tokens_planned =
      std::accumulate(stages.begin(), stages.end(), int64_t{0},
                      [](int64_t sum, const RecipeStage& stage) { return sum + stage.tokens; });
  Clock::time_point saved = impl.options.clock();
  while (impl.state.stage < stages.size()) {
    const auto stage_steps = static_cast<uint64_t>(impl.stage().steps());
    if (impl.state.step == stage_steps) {
      impl.end_stage();
      saved = impl.options.clock();
      continue;
    }
    if (stop.stop_requested()) {
      impl.save();
      return false;
    }
    const TrainingStep step = impl.make_step();
    if (!std::isfinite(step.loss) || !std::isfinite(step.gradient_norm)) {
      throw Error(
          ErrorCode::kNumeric,
          fmt::format("in step {} of stage {} the loss is {} and the norm of its gradient {}; the same recipe would "
                      "come to that again. Give the stage a lower rate, a longer warm_up or a clip_norm: "
                      "that is another recipe, which begins anew, so train into another folder (--out). What was last "
                      "saved stays in {}",
                      step.step, step.stage_name, step.loss, step.gradient_norm, impl.options.folder.string()));
    }
    impl.log->append(step);
    const double done = static_cast<double>(impl.state.tokens);
    const double left = std::max(0.0, static_cast<double>(tokens_planned) - done);
    if (on_step) on_step({step, stage_steps, done > 0 ? impl.state.seconds * left / done : 0});
    if (impl.options.clock() - saved >= impl.options.save_interval) {
      impl.save();
      saved = impl.options.clock();
    }
  }
  return true;
}

}  // namespace tidepool
