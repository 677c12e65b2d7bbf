#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "engine/trace.h"
#include "engine/trace_images.h"
#include "engine/trace_input.h"
#include "engine/trace_recorder.h"

namespace tidepool {

/// One run of a case's tokens on one model, and what it gave.
struct TraceRun {
  explicit TraceRun(size_t pictures) : images(pictures) {}

  TraceRecorder recorder;
  std::vector<TraceRecorder> images;         ///< of each picture: its plan, and what the vision tower made of it
  std::map<int64_t, double> output_ids;      ///< greedy, by the position whose logits chose the token
  std::map<int64_t, double> rel_vs_prefill;  ///< decode: row error against a single prefill, by position
};

/// Runs the case so that all `outputs` are recorded in `run`, which is new. Greedy outputs and drafts follow the
/// model's own choices. Throws Error as the model does.
void run_trace(const Model& model, const Runtime& runtime, const TraceInput& input, const TraceOptions& options,
               const std::vector<WantedTensor>& outputs, TraceRun& run);

}  // namespace tidepool
