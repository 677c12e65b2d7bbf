#include "engine/trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include <fmt/format.h>

#include "base/check.h"
#include "engine/sampler.h"
#include "engine/trace_input.h"
#include "engine/trace_recorder.h"
#include "formats/bf16.h"

namespace tidepool {

namespace {

/// One run of the case under one variant.
struct Run {
  TraceRecorder recorder;
  std::map<int64_t, double> output_ids;      ///< greedy, by the position whose logits chose the token
  std::map<int64_t, double> rel_vs_prefill;  ///< decode: row error against a single prefill, by position
};

void request_keys(const WantedTensor& wanted, const ModelConfig& config, TraceRecorder& recorder) {
  recorder.request(TraceRecorder::key_of(wanted.base, wanted.layer));
  if (wanted.base == "next_id" || wanted.base == "rel_vs_prefill") recorder.request("logits");
  if (wanted.base == "output_ids" || wanted.base == "top2_gap") recorder.request("logits");
  if (wanted.base.starts_with("main_hidden") && config.dspark) {
    for (const int64_t tap : config.dspark->target_layer_ids)
      recorder.request(fmt::format("main_hidden.{}", tap));
  }
  if (wanted.base == "engram_hash" && config.engram) {
    for (size_t slot = 0; slot < config.engram->layer_ids.size(); ++slot) {
      recorder.request(fmt::format("engram_hash.{}", slot));
    }
  }
}

/// Returns the most likely token behind the prompt.
int64_t run_prompt(const Model& model, const Runtime& runtime, Arena& arena, SequenceState& state,
                   std::span<const InputToken> tokens, const TraceOptions& options, TraceRecorder& recorder) {
  PrefillOptions prefill_options;
  prefill_options.replay = options.replay;
  prefill_options.chunk = options.chunk;
  prefill_options.logits = recorder.wants("logits") ? PrefillOptions::Logits::kAll : PrefillOptions::Logits::kLast;
  prefill_options.probe = &recorder;
  int64_t most_likely = -1;
  const auto keep = [&](int64_t first, Span2d<const float> logits, size_t) {
    recorder.record_logits(first, logits);
    if (logits.rows > 0) most_likely = argmax(logits.row(logits.rows - 1));
    return true;
  };
  TIDEPOOL_CHECK(prefill(model, runtime, arena, state, tokens, prefill_options, keep), "nothing stops a trace");
  return most_likely;
}

/// One token behind what the state holds; keeps its logits and returns their argmax.
int64_t run_token(const Model& model, const Runtime& runtime, Arena& arena, SequenceState& state, InputToken token,
                  TraceRecorder& recorder) {
  const Arena::Scope scope(arena);
  const int64_t position = state.length();
  const ForwardRequest request{&state, {&token, 1}, position, 1};
  const Span2d<const float> logits = forward(model, runtime, arena, {&request, 1}, &recorder);
  recorder.record_logits(position, logits);
  return argmax(logits.row(0));
}

void run_greedy(const Model& model, const Runtime& runtime, Arena& arena, SequenceState& state, int64_t next,
                size_t count, Run& run) {
  while (true) {
    run.output_ids[state.length() - 1] = static_cast<double>(next);
    if (run.output_ids.size() >= count) return;
    next = run_token(model, runtime, arena, state, {static_cast<int32_t>(next), false}, run.recorder);
  }
}

void compare_with_prefill(const Model& model, const Runtime& runtime, Arena& arena, const TraceInput& input,
                          const TraceOptions& options, Run& run) {
  TraceRecorder whole;
  whole.request("logits");
  std::set<int64_t> positions;
  for (const auto& [position, row] : run.recorder.floats("logits"))
    positions.insert(position);
  whole.limit_positions(positions);
  SequenceState state = model.new_sequence();
  (void)run_prompt(model, runtime, arena, state, input.tokens, options, whole);
  for (const auto& [position, row] : run.recorder.floats("logits")) {
    if (position < input.prompt_length - 1) continue;
    const std::vector<float>& expected = whole.floats("logits").at(position);
    double difference = 0;
    double norm = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      difference += std::pow(static_cast<double>(row[i]) - static_cast<double>(expected[i]), 2);
      norm += std::pow(static_cast<double>(expected[i]), 2);
    }
    run.rel_vs_prefill[position] = std::sqrt(difference / norm);
  }
}

void run_variant(const Model& model, const Runtime& runtime, const TraceInput& input, const TraceOptions& options,
                 const std::vector<WantedTensor>& outputs, Run& run) {
  size_t greedy_count = 0;
  bool wants_rel = false;
  for (const WantedTensor& wanted : outputs) {
    request_keys(wanted, model.config(), run.recorder);
    wants_rel = wants_rel || wanted.base == "rel_vs_prefill";
    const bool is_greedy_output = input.kind == TraceKind::kGreedy && !wanted.shape.empty();
    if (is_greedy_output) greedy_count = std::max(greedy_count, static_cast<size_t>(wanted.shape[0]));
  }
  if (input.rows) run.recorder.limit_positions({input.rows->begin(), input.rows->end()});
  Arena arena;
  SequenceState state = model.new_sequence();
  const std::span<const InputToken> tokens(input.tokens);
  const auto prompt = static_cast<size_t>(input.prompt_length);
  const int64_t next = run_prompt(model, runtime, arena, state, tokens.first(prompt), options, run.recorder);
  for (const InputToken token : tokens.subspan(prompt)) {
    run_token(model, runtime, arena, state, token, run.recorder);
  }
  if (greedy_count > 0) run_greedy(model, runtime, arena, state, next, greedy_count, run);
  if (wants_rel) compare_with_prefill(model, runtime, arena, input, options, run);
}

/// Which positions (or entries) the rows of a tensor stand for.
std::vector<int64_t> row_indices(const TraceInput& input, const WantedTensor& wanted) {
  std::vector<int64_t> indices;
  const auto count = wanted.shape.empty() ? int64_t{0} : wanted.shape[0];
  if (input.rows && !TraceRecorder::is_per_entry(wanted.base)) return *input.rows;
  const auto all = static_cast<int64_t>(input.tokens.size());
  const bool is_per_entry = TraceRecorder::is_per_entry(wanted.base);
  const bool starts_at_prompt_end = input.kind == TraceKind::kGreedy || (count != all && !is_per_entry);
  const int64_t first = starts_at_prompt_end ? input.prompt_length - 1 : 0;
  indices.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    indices.push_back(first + i);
  return indices;
}

template <typename T>
std::vector<double> widen(const std::vector<T>& row) {
  std::vector<double> result;
  result.reserve(row.size());
  for (const T value : row)
    result.push_back(static_cast<double>(value));
  return result;
}

/// The row recorded under `key` at `index` as doubles; empty when there is none.
std::vector<double> recorded_row(const TraceRecorder& recorder, const std::string& key, int64_t index) {
  const auto& floats = recorder.floats(key);
  if (const auto found = floats.find(index); found != floats.end()) return widen(found->second);
  const auto& ints = recorder.ints(key);
  if (const auto found = ints.find(index); found != ints.end()) return widen(found->second);
  return {};
}

/// Concatenation of the rows recorded under several keys; empty when one of them is missing.
std::vector<double> joined_row(const TraceRecorder& recorder, std::string_view base, std::span<const int64_t> suffixes,
                               int64_t index) {
  std::vector<double> result;
  for (const int64_t suffix : suffixes) {
    const std::vector<double> part = recorded_row(recorder, fmt::format("{}.{}", base, suffix), index);
    if (part.empty()) return {};
    result.insert(result.end(), part.begin(), part.end());
  }
  return result;
}

std::vector<double> output_row(const Run& run, const ModelConfig& config, const WantedTensor& wanted, int64_t index) {
  const TraceRecorder& recorder = run.recorder;
  if (wanted.base == "next_id" || wanted.base == "top2_gap") {
    std::vector<double> logits = recorded_row(recorder, "logits", index);
    if (logits.empty()) return {};
    const auto best = std::ranges::max_element(logits);
    if (wanted.base == "next_id") return {static_cast<double>(best - logits.begin())};
    const double top = *best;
    *best = -std::numeric_limits<double>::infinity();
    return {top - *std::ranges::max_element(logits)};
  }
  if (wanted.base == "output_ids" || wanted.base == "rel_vs_prefill") {
    const auto& values = wanted.base == "output_ids" ? run.output_ids : run.rel_vs_prefill;
    const auto found = values.find(index);
    return found == values.end() ? std::vector<double>{} : std::vector<double>{found->second};
  }
  if (wanted.base == "main_hidden" && config.dspark) {
    return joined_row(recorder, "main_hidden", config.dspark->target_layer_ids, index);
  }
  if (wanted.base == "engram_hash" && config.engram) {
    std::vector<int64_t> slots(config.engram->layer_ids.size());
    for (size_t slot = 0; slot < slots.size(); ++slot)
      slots[slot] = static_cast<int64_t>(slot);
    return joined_row(recorder, "engram_hash", slots, index);
  }
  return recorded_row(recorder, TraceRecorder::key_of(wanted.base, wanted.layer), index);
}

/// What an unused or uncomputed place holds.
double filler(const WantedTensor& wanted) {
  if (wanted.base == "index_score") return -std::numeric_limits<double>::infinity();
  if (wanted.dtype == Dtype::kBf16 || wanted.dtype == Dtype::kF32) return std::numeric_limits<double>::quiet_NaN();
  return wanted.dtype == Dtype::kBool ? 0 : -1;
}

void write_value(Dtype dtype, double value, std::byte* out) {
  if (dtype == Dtype::kF32) {
    const auto v = static_cast<float>(value);
    std::memcpy(out, &v, sizeof v);
  } else if (dtype == Dtype::kBf16) {
    const Bf16 v = to_bf16(static_cast<float>(value));
    std::memcpy(out, &v, sizeof v);
  } else if (dtype == Dtype::kI32) {
    const auto v = static_cast<int32_t>(value);
    std::memcpy(out, &v, sizeof v);
  } else if (dtype == Dtype::kI64) {
    const auto v = static_cast<int64_t>(value);  // all integers here are below 2^53
    std::memcpy(out, &v, sizeof v);
  } else {
    *out = static_cast<std::byte>(value != 0);
  }
}

/// Refuses a tensor whose rows cannot be told, or whose layer the model does not have.
void check_rows(const SafetensorsFile& test_case, const TraceInput& input, const ModelConfig& config,
                const WantedTensor& wanted) {
  if (wanted.layer >= config.num_hidden_layers) {
    refuse_case(test_case, ErrorCode::kInvalidArgument,
                fmt::format("tensor {} names layer {}; this model has {}", wanted.name, wanted.layer,
                            config.num_hidden_layers));
  }
  const bool is_free = input.kind == TraceKind::kGreedy || wanted.base == "main_hidden_last" || wanted.shape.empty();
  if (is_free) return;
  const auto all = static_cast<int64_t>(input.tokens.size());
  const int64_t rows = wanted.shape[0];
  if (TraceRecorder::is_per_entry(wanted.base) && rows <= all) return;
  const bool fits = input.rows                         ? rows == static_cast<int64_t>(input.rows->size())
                    : input.kind == TraceKind::kDecode ? rows == all || rows == all - input.prompt_length + 1
                                                       : rows == all;
  if (fits) return;
  refuse_case(test_case, ErrorCode::kInvalidArgument,
              fmt::format("tensor {} has {} rows, which are not the case's positions ({} tokens, {} rows asked for)",
                          wanted.name, rows, all, input.rows ? input.rows->size() : input.tokens.size()));
}

TraceTensor make_tensor(const SafetensorsFile& test_case, const TraceInput& input, const Run& run,
                        const ModelConfig& config, const WantedTensor& wanted) {
  check_rows(test_case, input, config, wanted);
  TraceTensor tensor{wanted.name, wanted.dtype, wanted.shape, {}};
  std::vector<int64_t> indices = row_indices(input, wanted);
  WantedTensor source = wanted;
  if (wanted.base == "main_hidden_last") {
    source.base = "main_hidden";
    indices = {input.prompt_length - 1};
    tensor.shape.insert(tensor.shape.begin(), 1);
  }
  if (tensor.shape.empty())
    refuse_case(test_case, ErrorCode::kUnsupported, "tensor " + wanted.name + " has no dimensions");
  tensor.shape[0] = static_cast<int64_t>(indices.size());
  size_t width = 1;
  for (size_t i = 1; i < tensor.shape.size(); ++i)
    width *= static_cast<size_t>(tensor.shape[i]);
  const size_t value_bytes = dtype_bytes(wanted.dtype);
  tensor.data.resize(indices.size() * width * value_bytes);
  bool was_computed = false;
  for (size_t r = 0; r < indices.size(); ++r) {
    const std::vector<double> row = output_row(run, config, source, indices[r]);
    was_computed = was_computed || !row.empty();
    const bool may_be_short = wanted.base == "topk" || wanted.base == "index_score" || wanted.base == "candidates";
    if (row.size() > width || (!row.empty() && !may_be_short && row.size() != width)) {
      refuse_case(test_case, ErrorCode::kInvalidArgument,
                  fmt::format("tensor {} has rows of {} values, this model gives {}", wanted.name, width, row.size()));
    }
    for (size_t c = 0; c < width; ++c) {
      write_value(wanted.dtype, c < row.size() ? row[c] : filler(wanted),
                  tensor.data.data() + (r * width + c) * value_bytes);
    }
  }
  if (!was_computed && !indices.empty() && width > 0 && wanted.base != "topk") tensor.name.clear();
  if (wanted.base == "main_hidden_last") tensor.shape.erase(tensor.shape.begin());
  return tensor;
}

TraceTensor int_tensor(const WantedTensor& wanted, const std::vector<int64_t>& values) {
  TraceTensor tensor{wanted.name, wanted.dtype, wanted.shape, {}};
  const size_t value_bytes = dtype_bytes(wanted.dtype);
  tensor.data.resize(values.size() * value_bytes);
  for (size_t i = 0; i < values.size(); ++i) {
    write_value(wanted.dtype, static_cast<double>(values[i]), tensor.data.data() + i * value_bytes);
  }
  return tensor;
}

/// An n-gram hash case: constants and row ids from compressed token ids.
std::vector<TraceTensor> trace_engram(const Model& model, const SafetensorsFile& test_case,
                                      const std::vector<WantedTensor>& outputs,
                                      std::vector<std::string>& not_computed) {
  const EngramHash* hash = model.engram_hash();
  if (hash == nullptr) refuse_case(test_case, ErrorCode::kUnsupported, "an Engram case, but this model has no Engram");
  const EngramConfig& config = *model.config().engram;
  std::map<std::string, std::vector<int64_t>, std::less<>> values;
  const auto append = [&](const std::string& name, std::span<const int64_t> part) {
    values[name].insert(values[name].end(), part.begin(), part.end());
  };
  std::vector<int32_t> compressed;
  for (const int64_t id : read_trace_ints(test_case, "compressed_ids")) {
    if (id < -1 || id >= config.compressed_vocab_size) {
      refuse_case(test_case, ErrorCode::kInvalidArgument,
                  fmt::format("compressed_ids holds {}; -1 to {} are possible", id, config.compressed_vocab_size - 1));
    }
    compressed.push_back(static_cast<int32_t>(id));
  }
  for (size_t slot = 0; slot < config.layer_ids.size(); ++slot) {
    append("primes", hash->primes(slot));
    append("offsets", hash->offsets(slot));
    append("multipliers", hash->multipliers(slot));
  }
  std::vector<int64_t> row(hash->columns());
  for (size_t position = 0; position < compressed.size(); ++position) {
    for (size_t slot = 0; slot < config.layer_ids.size(); ++slot) {
      hash->rows_of_compressed(slot, compressed, static_cast<int64_t>(position), row);
      append("hash_ids", row);
    }
  }
  append("layer_ids", config.layer_ids);
  append("num_embeddings", config.num_embeddings);
  append("pad_id", std::array{hash->pad_id()});
  append("compressed_vocab", std::array{config.compressed_vocab_size});
  append("token_map", std::vector<int64_t>(hash->token_map().begin(), hash->token_map().end()));
  std::vector<TraceTensor> result;
  for (const WantedTensor& wanted : outputs) {
    const auto found = values.find(wanted.name);
    if (found == values.end()) {
      not_computed.push_back(wanted.name);
      continue;
    }
    TraceTensor tensor = int_tensor(wanted, found->second);
    if (tensor_bytes(tensor.dtype, tensor.shape) != tensor.data.size()) {
      refuse_case(test_case, ErrorCode::kInvalidArgument,
                  "tensor " + wanted.name + " belongs to another Engram config");
    }
    result.push_back(std::move(tensor));
  }
  return result;
}

}  // namespace

TraceResult trace_case(const TraceSetup& setup, const SafetensorsFile& test_case, const TraceOptions& options) {
  TraceResult result;
  const ModelConfig& config = setup.official.config();
  const TraceInput input = read_trace_input(test_case, config);
  const std::vector<WantedTensor> outputs = wanted_tensors(test_case, options.numerics, result.not_computed);
  if (input.kind == TraceKind::kEngram) {
    result.tensors = trace_engram(setup.official, test_case, outputs, result.not_computed);
    return result;
  }
  constexpr std::array kVariants{TraceVariant::kOfficial, TraceVariant::kHp, TraceVariant::kNoActivationGrid};
  const std::array models{&setup.official, &setup.hp, &setup.without_activation_grid};
  for (size_t v = 0; v < kVariants.size(); ++v) {
    std::vector<WantedTensor> of_variant;
    std::ranges::copy_if(outputs, std::back_inserter(of_variant),
                         [&](const WantedTensor& wanted) { return wanted.variant == kVariants[v]; });
    if (of_variant.empty()) continue;
    Run run;
    run_variant(*models[v], setup.runtime, input, options, of_variant, run);
    for (const WantedTensor& wanted : of_variant) {
      TraceTensor tensor = make_tensor(test_case, input, run, config, wanted);
      if (tensor.name.empty()) {
        result.not_computed.push_back(wanted.name);
      } else {
        result.tensors.push_back(std::move(tensor));
      }
    }
  }
  return result;
}

}  // namespace tidepool
