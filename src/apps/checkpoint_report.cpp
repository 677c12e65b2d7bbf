#include "apps/checkpoint_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "kv/sequence_state.h"

namespace tidepool {
namespace {

using Part = ExpectedTensor::Part;

constexpr int64_t kContext128K = int64_t{128} * 1024;
constexpr int64_t kContext1M = int64_t{1024} * 1024;

bool is_engram_table(const Checkpoint::TensorInfo& tensor) {
  return tensor.name.find(".engram.embed.") != std::string::npos;
}

std::string_view part_name(const Checkpoint::TensorInfo& tensor) {
  switch (tensor.part) {
    case Part::kBackbone: return "backbone";
    case Part::kEngram: return is_engram_table(tensor) ? "Engram tables" : "Engram projections";
    case Part::kDspark: return "DSpark";
    case Part::kVision: return "vision";
  }
  return "";
}

/// Values a tensor holds: packed FP4 has two in a byte, and the scales of quantised tensors are part of their encoding.
uint64_t parameters_of(const Checkpoint::TensorInfo& tensor) {
  if (tensor.dtype == Dtype::kF8E8m0) return 0;
  const uint64_t elements = tensor.bytes / dtype_bytes(tensor.dtype);
  const bool is_packed = tensor.dtype == Dtype::kI8 || tensor.dtype == Dtype::kU8;
  return is_packed ? 2 * elements : elements;
}

void count_tensors(const Checkpoint& checkpoint, CheckpointReport& report) {
  constexpr std::array<std::string_view, 5> kParts = {"backbone", "Engram tables", "Engram projections", "DSpark",
                                                      "vision"};
  for (const std::string_view name : kParts)
    report.parts.push_back({std::string(name), 0, 0});
  std::map<Dtype, DtypeSize> dtypes;
  for (const Checkpoint::TensorInfo& tensor : checkpoint.tensors()) {
    const auto part = std::ranges::find(report.parts, part_name(tensor), &PartSize::name);
    part->parameters += parameters_of(tensor);
    part->bytes += tensor.bytes;
    DtypeSize& dtype = dtypes[tensor.dtype];
    dtype.dtype = tensor.dtype;
    dtype.bytes += tensor.bytes;
    ++dtype.tensors;
    ++report.tensors;
    report.plan.weight_bytes += tensor.bytes;
    if (is_engram_table(tensor)) report.plan.table_bytes += tensor.bytes;
  }
  std::erase_if(report.parts, [](const PartSize& part) { return part.bytes == 0; });
  for (const auto& [dtype, size] : dtypes)
    report.dtypes.push_back(size);
}

/// The longest context for which `memory` bytes are enough beside one sequence's fixed part; at most the model's.
int64_t longest_context(const CheckpointReport& report, uint64_t memory) {
  const MemoryPlan& plan = report.plan;
  if (memory <= plan.sequence_bytes) return 0;
  if (plan.token_bytes == 0) return report.config.max_position_embeddings;
  const uint64_t tokens = (memory - plan.sequence_bytes) / plan.token_bytes;
  return static_cast<int64_t>(std::min(tokens, static_cast<uint64_t>(report.config.max_position_embeddings)));
}

std::string context_clause(const CheckpointReport& report, uint64_t memory) {
  const int64_t tokens = longest_context(report, memory);
  if (tokens >= report.config.max_position_embeddings) {
    return fmt::format("and leave room for the whole context of {} tokens",
                       format_count(static_cast<uint64_t>(tokens)));
  }
  return fmt::format("and leave room for a context of {} tokens", format_count(static_cast<uint64_t>(tokens)));
}

std::string make_verdict(const CheckpointReport& report) {
  const MemoryPlan& plan = report.plan;
  const uint64_t available = plan.machine.memory_available;
  const uint64_t constant = plan.weight_bytes - plan.table_bytes;
  if (available == 0) return "This system does not say how much memory is available.";
  if (plan.weight_bytes + plan.sequence_bytes <= available) {
    return fmt::format("All weights fit in the available memory ({} of {}) {}.", format_bytes(plan.weight_bytes),
                       format_bytes(available), context_clause(report, available - plan.weight_bytes));
  }
  if (plan.table_bytes > 0 && constant + plan.sequence_bytes <= available) {
    return fmt::format(
        "All weights but the Engram tables fit in the available memory ({} of {}) {}; the tables, of which each token "
        "needs a few rows, are read from disk.",
        format_bytes(constant), format_bytes(available), context_clause(report, available - constant));
  }
  return fmt::format(
      "The weights{} need {}, and {} of memory is available: what a token needs and memory does not hold is read from "
      "disk each time, so expect the speed of the disk. {} more memory would hold them.",
      plan.table_bytes > 0 ? " without the Engram tables" : "", format_bytes(constant), format_bytes(available),
      format_bytes(constant + plan.sequence_bytes - available));
}

/// KV is kept in blocks of kBlockTokens tokens.
uint64_t kv_bytes(const KvLayout& layout, int64_t tokens) {
  return static_cast<uint64_t>((tokens + kBlockTokens - 1) / kBlockTokens) * layout.block_bytes;
}

void make_plan(CheckpointReport& report) {
  MemoryPlan& plan = report.plan;
  const auto layout = std::make_shared<const KvLayout>(make_kv_layout(report.config, report.layers));
  plan.token_bytes = layout->block_bytes / static_cast<uint64_t>(kBlockTokens);
  plan.sequence_bytes = SequenceState(layout).bytes();
  std::vector<int64_t> contexts = {kContext128K, kContext1M};
  if (std::ranges::find(contexts, report.config.max_position_embeddings) == contexts.end())
    contexts.push_back(report.config.max_position_embeddings);
  std::ranges::sort(contexts);
  for (const int64_t tokens : contexts)
    plan.contexts.push_back({tokens, kv_bytes(*layout, tokens)});
  plan.verdict = make_verdict(report);
}

}  // namespace

CheckpointReport make_checkpoint_report(const Checkpoint& checkpoint, const Machine& machine) {
  CheckpointReport report;
  report.config = checkpoint.config();
  report.layers = make_layer_table(report.config);
  report.plan.machine = machine;
  count_tensors(checkpoint, report);
  make_plan(report);
  return report;
}

std::string format_parameters(uint64_t parameters) {
  // From a tenth of a billion on in billions, as models are named.
  const bool in_billions = parameters >= 100'000'000;
  const bool in_millions = parameters >= 100'000;
  const double value = static_cast<double>(parameters) / (in_billions ? 1e9 : in_millions ? 1e6 : 1e3);
  const char* unit = in_billions ? "B" : in_millions ? "M" : "K";
  if (value < 1) return fmt::format("{:.3f}{}", value, unit);
  if (value < 10) return fmt::format("{:.2f}{}", value, unit);
  return value < 200 ? fmt::format("{:.1f}{}", value, unit) : fmt::format("{:.0f}{}", value, unit);
}

std::string format_bytes(uint64_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  return value < 10 ? fmt::format("{:.2f} {}", value, kUnits[unit]) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string format_count(uint64_t count) {
  std::string digits = std::to_string(count);
  for (size_t place = digits.size(); place > 3; place -= 3)
    digits.insert(place - 3, 1, ',');
  return digits;
}

}  // namespace tidepool
