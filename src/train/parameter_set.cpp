#include "train/parameter_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "formats/bf16.h"
#include "formats/checkpoint.h"
#include "formats/fp8.h"
#include "train/name_list.h"

namespace tidepool {

namespace {

constexpr size_t kScaleColumns = 32;  ///< columns of an Engram row that share a scale

WeightFormat format_of(const ExpectedTensor& tensor) {
  switch (tensor.dtype) {
    case Dtype::kF8E4m3:
      return tensor.name.ends_with("engram.embed.weight") ? WeightFormat::kFp8Row32 : WeightFormat::kFp8Tile32;
    case Dtype::kI8: return WeightFormat::kFp4Block32;
    case Dtype::kBf16: return WeightFormat::kBf16;
    case Dtype::kF32: return WeightFormat::kFloat32;
    default: break;
  }
  TIDEPOOL_CHECK(false, tensor.name);
  return WeightFormat::kBf16;
}

/// The published groups. (docs/training.md, "Optimisers")
UpdateRule rule_of(std::string_view name, const std::vector<int64_t>& shape) {
  if (ends_with_any(name, {"gate.bias", "gate.bias_vl"})) return UpdateRule::kBalance;
  if (ends_with_any(name, {"engram.q_weight", "engram.k_weight"})) return UpdateRule::kAdam;  // factors, not a layer
  if (shape.size() < 2) return UpdateRule::kAdam;
  if (name == "embed.weight" || name == "head.weight") return UpdateRule::kSinkhorn;
  if (ends_with_any(name, {"engram.embed.weight", "markov_head.embed.weight", "markov_head.head.weight"}))
    return UpdateRule::kSinkhorn;
  if (name.ends_with(".wq_b.weight")) return UpdateRule::kMuonHeads;
  return UpdateRule::kMuon;
}

/// Row `index` of a tensor, as numbers.
void read_row(const Checkpoint& checkpoint, const std::string& name, WeightFormat format, size_t index,
              std::span<float> row) {
  const TensorView tensor = checkpoint.tensor(name);
  const std::string_view stem = std::string_view(name).substr(0, name.size() - std::string_view(".weight").size());
  switch (format) {
    case WeightFormat::kFp8Tile32:
    case WeightFormat::kFp4Block32: dequantise_row(checkpoint.matrix(stem), index, row); return;
    case WeightFormat::kFp8Row32: {
      const TensorView scales = checkpoint.tensor(fmt::format("{}.scale", stem));
      const size_t blocks = row.size() / kScaleColumns;
      for (size_t i = 0; i < row.size(); ++i) {
        row[i] = to_float(E4m3{static_cast<uint8_t>(tensor.data[index * row.size() + i])}) *
                 to_float(E8m0{static_cast<uint8_t>(scales.data[index * blocks + i / kScaleColumns])});
      }
      return;
    }
    case WeightFormat::kBf16:
      for (size_t i = 0; i < row.size(); ++i)
        row[i] = to_float(reinterpret_cast<const Bf16*>(tensor.data)[index * row.size() + i]);
      return;
    case WeightFormat::kFloat32:
      std::ranges::copy_n(reinterpret_cast<const float*>(tensor.data) + index * row.size(),
                          static_cast<std::ptrdiff_t>(row.size()), row.begin());
      return;
  }
}

bool decays(std::string_view name, UpdateRule rule) {
  if (rule == UpdateRule::kMuon || rule == UpdateRule::kMuonHeads) return true;
  return rule == UpdateRule::kAdam && name.ends_with("norm.weight");
}

/// In values; nothing for a scale, which follows from the values.
std::vector<int64_t> value_shape(const ExpectedTensor& tensor) {
  if (tensor.dtype == Dtype::kF8E8m0) return {};
  std::vector<int64_t> shape = tensor.shape;
  if (format_of(tensor) == WeightFormat::kFp4Block32) shape.back() *= 2;
  return shape;
}

uint64_t product(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), uint64_t{1},
                         [](uint64_t before, int64_t n) { return before * static_cast<uint64_t>(n); });
}

}  // namespace

uint64_t parameter_count(const ModelConfig& config) {
  uint64_t count = 0;
  for (const ExpectedTensor& tensor : expected_tensors(config)) {
    const std::vector<int64_t> shape = value_shape(tensor);
    if (!shape.empty()) count += product(shape);
  }
  return count;
}

template <typename Real>
ParameterSet<Real>::ParameterSet(const ModelConfig& config) {
  for (const ExpectedTensor& tensor : expected_tensors(config)) {
    Parameter<Real> parameter;
    parameter.name = tensor.name;
    parameter.shape = value_shape(tensor);
    if (parameter.shape.empty()) continue;
    parameter.format = format_of(tensor);
    parameter.rule = rule_of(tensor.name, parameter.shape);
    parameter.decays = decays(tensor.name, parameter.rule);
    if (parameter.rule == UpdateRule::kMuonHeads) {
      parameter.head_rows = static_cast<size_t>(
          tensor.name.find(".indexer.") != std::string::npos ? config.index_head_dim : config.head_dim);
    }
    if (tensor.name.ends_with("engram.embed.weight")) parameter.rate = 5;
    const auto cols = static_cast<size_t>(parameter.shape.back());
    const size_t count = product(parameter.shape);
    parameter.data_ = Buffer<Real>(count);
    parameter.grad_ = Buffer<Real>(count);
    parameter.value = {{parameter.data_.data(), count / cols, cols}, {parameter.grad_.data(), count / cols, cols}};
    parameters_.push_back(std::move(parameter));
  }
  by_name_.resize(parameters_.size());
  std::iota(by_name_.begin(), by_name_.end(), size_t{0});
  std::ranges::sort(by_name_, {}, [this](size_t place) { return std::string_view(parameters_[place].name); });
}

template <typename Real>
const Parameter<Real>& ParameterSet<Real>::get(std::string_view name) const {
  const auto found = std::ranges::lower_bound(
      by_name_, name, {}, [this](size_t place) { return std::string_view(parameters_[place].name); });
  TIDEPOOL_CHECK(found != by_name_.end() && parameters_[*found].name == name, name);
  return parameters_[*found];
}

template <typename Real>
Parameter<Real>& ParameterSet<Real>::get(std::string_view name) {
  return const_cast<Parameter<Real>&>(std::as_const(*this).get(name));  // NOLINT(*-const-cast): the set is not const
}

template <typename Real>
bool ParameterSet<Real>::has(std::string_view name) const {
  return std::ranges::any_of(parameters_, [&](const Parameter<Real>& parameter) { return parameter.name == name; });
}

template <typename Real>
size_t ParameterSet<Real>::count() const {
  return std::accumulate(parameters_.begin(), parameters_.end(), size_t{0},
                         [](size_t sum, const Parameter<Real>& p) { return sum + p.data_.size(); });
}

template <typename Real>
void ParameterSet<Real>::clear_gradients() {
  for (Parameter<Real>& parameter : parameters_)
    std::ranges::fill(parameter.grad_.span(), Real{0});
}

template <typename Real>
void load_parameters(const Checkpoint& checkpoint, ParameterSet<Real>& parameters) {
  for (Parameter<Real>& parameter : parameters.all()) {
    const Span2d<Real> into = parameter.value.data;
    std::vector<float> row(into.cols);
    for (size_t r = 0; r < into.rows; ++r) {
      read_row(checkpoint, parameter.name, parameter.format, r, row);
      std::ranges::copy(row, into.row(r).begin());
    }
  }
}

template class ParameterSet<float>;
template class ParameterSet<double>;
template void load_parameters(const Checkpoint&, ParameterSet<float>&);
template void load_parameters(const Checkpoint&, ParameterSet<double>&);

}  // namespace tidepool
