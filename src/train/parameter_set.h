#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "formats/config.h"
#include "train/tape.h"

namespace tidepool {

class Checkpoint;

/// What the released file holds of a tensor, and what QAT rounds it to.
enum class WeightFormat : uint8_t {
  kFp8Tile32,   ///< E4M3, a power-of-two scale per 32x32 tile: dense layers
  kFp8Row32,    ///< E4M3, a power-of-two scale per row and 32 columns: Engram tables
  kFp4Block32,  ///< E2M1, a power-of-two scale per row and 32 columns: routed experts
  kBf16,        ///< bfloat16: embedding, head, norms, compressors
  kFloat32,     ///< binary32: hyper-connections, sinks, biases
};

/// How an optimiser moves a parameter. (docs/training.md, "Optimisers")
enum class UpdateRule : uint8_t {
  kMuon,       ///< momentum, orthogonalised: linear layers
  kMuonHeads,  ///< the same for each head's rows alone: queries
  kSinkhorn,   ///< momentum, rows and columns balanced: embedding, head, Engram tables
  kAdam,       ///< AdamW: norms, biases, scales
  kBalance,    ///< by the load of experts, not by a gradient: selection biases
};

/// How many values a model of the config has to train. Takes no memory for them.
[[nodiscard]] uint64_t parameter_count(const ModelConfig& config);

/// One tensor that is trained, under its released name. Its master copy is binary32 (double when derivatives are
/// checked); `format` is what the released file holds, and what QAT rounds it to.
template <typename Real>
struct Parameter {
  std::string name;            ///< as in the checkpoint: "layers.3.attn.wq_b.weight"
  std::vector<int64_t> shape;  ///< in values, not packed
  WeightFormat format = WeightFormat::kBf16;
  UpdateRule rule = UpdateRule::kAdam;
  size_t head_rows = 0;  ///< rows of one head, for kMuonHeads
  bool decays = false;   ///< weight decay applies
  double rate = 1;       ///< factor on the learning rate (5 for Engram tables)
  Value<Real> value;     ///< vectors are one row

 private:
  template <typename>
  friend class ParameterSet;
  Buffer<Real> data_;
  Buffer<Real> grad_;
};

/// All tensors that a config asks for, with masters and gradients. Names, shapes and formats are those of the released
/// tensor table (`expected_tensors`), so that what is trained is what the engine reads.
template <typename Real>
class ParameterSet {
 public:
  /// All zero. The draft head and the vision tower take part when the config has them.
  explicit ParameterSet(const ModelConfig& config);

  [[nodiscard]] std::vector<Parameter<Real>>& all() { return parameters_; }
  [[nodiscard]] const std::vector<Parameter<Real>>& all() const { return parameters_; }
  /// The parameter of that name; a name that the table lacks is a bug.
  [[nodiscard]] Parameter<Real>& get(std::string_view name);
  [[nodiscard]] const Parameter<Real>& get(std::string_view name) const;
  [[nodiscard]] bool has(std::string_view name) const;

  [[nodiscard]] size_t count() const;  ///< values, all tensors together
  void clear_gradients();

 private:
  std::vector<Parameter<Real>> parameters_;  ///< in the table's order
  std::vector<size_t> by_name_;              ///< places in it, ordered by name
};

extern template class ParameterSet<float>;
extern template class ParameterSet<double>;

/// The values of a released checkpoint, exact. The set must be of the same config.
template <typename Real>
void load_parameters(const Checkpoint& checkpoint, ParameterSet<Real>& parameters);

}  // namespace tidepool
