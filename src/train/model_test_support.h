#pragma once

#include <utility>
#include <vector>

#include "train/matmul.h"
#include "train/model.h"

namespace tidepool {

/// Logits of every row of one text, as training computes them with all roundings of inference.
inline std::vector<float> trained_logits(const ModelConfig& config, const ParameterSet<float>& parameters,
                                         const std::vector<int32_t>& token_map, const std::vector<int32_t>& ids,
                                         std::vector<SamplePicture> pictures = {}) {
  TrainingModel<float> model(config, token_map, parameters);
  ThreadPool pool(2);
  Tape<float> tape(pool, Tape<float>::Mode::kForward);
  TokenBatch batch;
  batch.segments = {{0, ids.size(), 0}};
  batch.ids = ids;
  batch.targets.resize(ids.size());
  batch.weights.resize(ids.size());
  batch.pictures = std::move(pictures);
  const BackbonePass<float> pass = model.run(tape, batch, {.qat = kFullQat});
  const Value<float>& head = parameters.get("head.weight").value;
  std::vector<float> logits(ids.size() * head.rows());
  matmul(tape, {pass.hidden.data, transposed(head.data), {logits.data(), ids.size(), head.rows()}});
  return logits;
}

}  // namespace tidepool
