#include "engine/trace_constants.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include <fmt/format.h>

#include "image/plan.h"

namespace tidepool {
namespace {

/// Computed values by the name of their tensor.
using Values = std::map<std::string, std::vector<int64_t>, std::less<>>;

void append(Values& values, const std::string& name, std::span<const int64_t> part) {
  values[name].insert(values[name].end(), part.begin(), part.end());
}

/// Constants of an n-gram hash, and row ids from compressed token ids.
Values engram_values(const Model& model, const SafetensorsFile& test_case) {
  const EngramHash* hash = model.engram_hash();
  if (hash == nullptr) refuse_case(test_case, ErrorCode::kUnsupported, "an Engram case, but this model has no Engram");
  const EngramConfig& config = *model.config().engram;
  std::vector<int32_t> compressed;
  for (const int64_t id : read_trace_ints(test_case, "compressed_ids")) {
    if (id < -1 || id >= config.compressed_vocab_size) {
      refuse_case(test_case, ErrorCode::kInvalidArgument,
                  fmt::format("compressed_ids holds {}; -1 to {} are possible", id, config.compressed_vocab_size - 1));
    }
    compressed.push_back(static_cast<int32_t>(id));
  }
  Values values;
  for (size_t slot = 0; slot < config.layer_ids.size(); ++slot) {
    append(values, "primes", hash->primes(slot));
    append(values, "offsets", hash->offsets(slot));
    append(values, "multipliers", hash->multipliers(slot));
  }
  std::vector<int64_t> row(hash->columns());
  for (size_t position = 0; position < compressed.size(); ++position) {
    for (size_t slot = 0; slot < config.layer_ids.size(); ++slot) {
      hash->rows_of_compressed(slot, compressed, static_cast<int64_t>(position), row);
      append(values, "hash_ids", row);
    }
  }
  append(values, "layer_ids", config.layer_ids);
  append(values, "num_embeddings", config.num_embeddings);
  append(values, "pad_id", std::array{hash->pad_id()});
  append(values, "compressed_vocab", std::array{config.compressed_vocab_size});
  append(values, "token_map", std::vector<int64_t>(hash->token_map().begin(), hash->token_map().end()));
  return values;
}

/// The config that a tensor "params.X" of a plan case states: patch, downsample, budget, smallest area, ratio limit.
ImagePlanConfig plan_config(const SafetensorsFile& test_case, const std::string& name) {
  constexpr int64_t kSideMax = int64_t{1} << 20;  // far above any config, far below where products overflow
  const std::vector<int64_t> params = read_trace_ints(test_case, name);
  const auto is_in = [](int64_t value, int64_t least, int64_t most) { return value >= least && value <= most; };
  const bool fits = params.size() == 5 && is_in(params[0], 1, kSideMax) && is_in(params[1], 1, kSideMax) &&
                    is_in(params[2], 4, kSideMax) && is_in(params[3], 0, kSideMax * kSideMax);
  if (!fits) {
    refuse_case(test_case, ErrorCode::kInvalidArgument,
                fmt::format("tensor {} must be patch, downsample, tokens (at least 4), smallest area, ratio", name));
  }
  if (params[4] != -1) {
    refuse_case(
        test_case, ErrorCode::kUnsupported,
        fmt::format("tensor {} limits the ratio of sides to {}; only -1, no limit, is planned", name, params[4]));
  }
  return {params[0], params[1], params[2], params[3]};
}

/// Plans of the case's sizes under each of its configs. A size that is not planned at all has a row of -1.
Values plan_values(const SafetensorsFile& test_case) {
  constexpr int64_t kPixelsMax = int64_t{1} << 31;
  const std::vector<int64_t> sizes = read_trace_ints(test_case, "sizes");
  const bool fits =
      sizes.size() % 2 == 0 && std::ranges::all_of(sizes, [](int64_t side) { return side >= 1 && side < kPixelsMax; });
  if (!fits) {
    refuse_case(test_case, ErrorCode::kInvalidArgument, "sizes must be pairs of width and height, below 2^31");
  }
  Values values;
  for (const SafetensorsFile::Entry& entry : test_case.entries()) {
    constexpr std::string_view kPrefix = "params.";
    if (!entry.name.starts_with(kPrefix)) continue;
    const ImagePlanConfig config = plan_config(test_case, entry.name);
    const std::string name = "plan." + entry.name.substr(kPrefix.size());
    for (size_t i = 0; i < sizes.size(); i += 2) {
      const ImagePlan p = plan_image(config, sizes[i], sizes[i + 1]);
      std::array row{p.cell_rows, p.cell_columns, p.canvas_height, p.canvas_width, p.scaled_width, p.scaled_height, p.x,
                     p.y};
      if (p.canvas_width < 1 || p.canvas_height < 1) row.fill(-1);
      append(values, name, row);
    }
  }
  return values;
}

TraceTensor int_tensor(const WantedTensor& wanted, const std::vector<int64_t>& values) {
  TraceTensor tensor{wanted.name, wanted.dtype, wanted.shape, {}};
  const size_t value_bytes = dtype_bytes(wanted.dtype);
  tensor.data.resize(values.size() * value_bytes);
  for (size_t i = 0; i < values.size(); ++i) {
    if (wanted.dtype == Dtype::kI64) {
      std::memcpy(tensor.data.data() + i * value_bytes, &values[i], value_bytes);
    } else {
      const auto narrow = static_cast<int32_t>(values[i]);
      std::memcpy(tensor.data.data() + i * value_bytes, &narrow, value_bytes);
    }
  }
  return tensor;
}

}  // namespace

std::vector<TraceTensor> trace_constants(const Model& model, const SafetensorsFile& test_case, TraceKind kind,
                                         const std::vector<WantedTensor>& outputs,
                                         std::vector<std::string>& not_computed) {
  const Values values = kind == TraceKind::kEngram ? engram_values(model, test_case) : plan_values(test_case);
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
                  fmt::format("tensor {} holds another number of values than the {} there are: it belongs to another "
                              "config",
                              wanted.name, found->second.size()));
    }
    result.push_back(std::move(tensor));
  }
  return result;
}

}  // namespace tidepool
