#include "engine/trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include <fmt/format.h>

#include "engine/trace_constants.h"
#include "engine/trace_input.h"
#include "engine/trace_recorder.h"
#include "engine/trace_run.h"
#include "formats/bf16.h"

namespace tidepool {

namespace {

/// Which positions (or entries) the rows of a tensor stand for.
std::vector<int64_t> row_indices(const TraceInput& input, const WantedTensor& wanted) {
  std::vector<int64_t> indices;
  const auto count = wanted.shape.empty() ? int64_t{0} : wanted.shape[0];
  if (input.rows && wanted.image < 0 && !TraceRecorder::is_per_entry(wanted.base)) return *input.rows;
  const auto all = static_cast<int64_t>(input.tokens.size());
  const bool is_per_entry = TraceRecorder::is_per_entry(wanted.base);
  const bool is_whole_prompt = input.kind == TraceKind::kImage && count == input.prompt_length;
  const bool starts_at_prompt_end =
      wanted.image < 0 && (input.kind == TraceKind::kGreedy || (count != all && !is_per_entry && !is_whole_prompt));
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

std::vector<double> output_row(const TraceRun& run, const ModelConfig& config, const WantedTensor& wanted,
                               int64_t index) {
  if (wanted.image >= 0) {
    return recorded_row(run.images[static_cast<size_t>(wanted.image)], TraceRecorder::key_of(wanted.base, wanted.layer),
                        index);
  }
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
  } else if (dtype == Dtype::kU8) {
    *out = static_cast<std::byte>(value);
  } else {
    *out = static_cast<std::byte>(value != 0);
  }
}

/// Whether a tensor may have as many rows: those of all positions, or of the part that the kind of case is about.
bool are_rows_of_case(const TraceInput& input, int64_t rows) {
  const auto all = static_cast<int64_t>(input.tokens.size());
  const int64_t from_prompt_end = all - input.prompt_length + 1;
  if (input.rows) return rows == static_cast<int64_t>(input.rows->size());
  switch (input.kind) {
    case TraceKind::kDecode:
    case TraceKind::kDraft: return rows == all || rows == from_prompt_end;
    case TraceKind::kImage: return rows == all || rows == from_prompt_end || rows == input.prompt_length;
    default: return rows == all;
  }
}

/// The same for what belongs to a picture of the case.
void check_image_tensor(const SafetensorsFile& test_case, const TraceInput& input, const TraceRun& run,
                        const WantedTensor& wanted) {
  if (static_cast<size_t>(wanted.image) >= run.images.size()) {
    refuse_case(test_case, ErrorCode::kInvalidArgument,
                fmt::format("tensor {} names a picture; the case has {}", wanted.name, input.images.size()));
  }
  const TraceRecorder& recorder = run.images[static_cast<size_t>(wanted.image)];
  const std::string key = TraceRecorder::key_of(wanted.base, wanted.layer);
  const size_t rows = recorder.floats(key).size() + recorder.ints(key).size();
  if (rows == 0 || wanted.shape.empty() || rows == static_cast<size_t>(wanted.shape[0])) return;
  refuse_case(test_case, ErrorCode::kInvalidArgument,
              fmt::format("tensor {} has {} rows, this model gives {}", wanted.name, wanted.shape[0], rows));
}

/// Refuses a tensor whose rows cannot be told, or whose layer the model does not have.
void check_rows(const SafetensorsFile& test_case, const TraceInput& input, const TraceRun& run,
                const ModelConfig& config, const WantedTensor& wanted) {
  const int64_t layers = wanted.image < 0 ? config.num_hidden_layers : config.vision->num_hidden_layers;
  if (wanted.layer >= layers) {
    refuse_case(test_case, ErrorCode::kInvalidArgument,
                fmt::format("tensor {} names layer {}; this model has {}", wanted.name, wanted.layer, layers));
  }
  if (wanted.image >= 0) {
    check_image_tensor(test_case, input, run, wanted);
    return;
  }
  const bool is_free = input.kind == TraceKind::kGreedy || wanted.base == "main_hidden_last" || wanted.shape.empty();
  if (is_free) return;
  const auto all = static_cast<int64_t>(input.tokens.size());
  const int64_t rows = wanted.shape[0];
  if (TraceRecorder::is_per_entry(wanted.base) && rows <= all) return;
  if (are_rows_of_case(input, rows)) return;
  refuse_case(test_case, ErrorCode::kInvalidArgument,
              fmt::format("tensor {} has {} rows, which are not the case's positions ({} tokens, {} rows asked for)",
                          wanted.name, rows, all, input.rows ? input.rows->size() : input.tokens.size()));
}

TraceTensor make_tensor(const SafetensorsFile& test_case, const TraceInput& input, const TraceRun& run,
                        const ModelConfig& config, const WantedTensor& wanted) {
  check_rows(test_case, input, run, config, wanted);
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

}  // namespace

TraceResult trace_case(const TraceSetup& setup, const SafetensorsFile& test_case, const TraceOptions& options) {
  TraceResult result;
  const ModelConfig& config = setup.official.config();
  const TraceInput input = read_trace_input(test_case, config);
  const std::vector<WantedTensor> outputs = wanted_tensors(test_case, options.numerics, result.not_computed);
  if (input.kind == TraceKind::kEngram || input.kind == TraceKind::kImagePlan) {
    result.tensors = trace_constants(setup.official, test_case, input.kind, outputs, result.not_computed);
    return result;
  }
  constexpr std::array kVariants{TraceVariant::kOfficial, TraceVariant::kHp, TraceVariant::kNoActivationGrid};
  const std::array models{&setup.official, &setup.hp, &setup.without_activation_grid};
  for (size_t v = 0; v < kVariants.size(); ++v) {
    std::vector<WantedTensor> of_variant;
    std::ranges::copy_if(outputs, std::back_inserter(of_variant),
                         [&](const WantedTensor& wanted) { return wanted.variant == kVariants[v]; });
    if (of_variant.empty()) continue;
    if (input.kind == TraceKind::kDraft && models[v]->draft_head() == nullptr) {
      refuse_case(test_case, ErrorCode::kUnsupported, "a draft (DSpark) case, but this model has no draft head");
    }
    TraceRun run(input.images.size());
    run_trace(*models[v], setup.runtime, input, options, of_variant, run);
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
