#pragma once

#include <chrono>
#include <functional>

#include "engine/draft_planner.h"
#include "model/model.h"

namespace tidepool {

/// Time that only goes forward; a steady clock outside tests.
using DraftClock = std::function<std::chrono::duration<double>()>;
[[nodiscard]] DraftClock steady_draft_clock();

/// How far a profile goes.
struct DraftProfileOptions {
  size_t sequences_max = 1;  ///< that one pass may hold
  /// What it may take; a pass that was begun is ended. Below two seconds, so that nobody waits for it.
  std::chrono::duration<double> budget = std::chrono::milliseconds(1500);
};

/// A planner from this machine's step times, measured with sequences of its own: of one row, of a whole block behind
/// the last token of one sequence and what lies between, then of 8, 16, 32, ... rows spread over all sequences, as long
/// as the budget lasts. Numbers of rows not reached are estimated from weight_costs(). Only for a model with a draft
/// head. `arena` is scratch.
[[nodiscard]] DraftPlanner profile_drafts(const Model& model, const Runtime& runtime, Arena& arena,
                                          const DraftClock& clock, const DraftProfileOptions& options = {});

/// A planner for one sequence whose costs follow from the config: with Costs::kNominal what it decides can be repeated
/// anywhere; with kMeasured it knows how they compare until steps have been noted, and costs no time to make.
[[nodiscard]] DraftPlanner estimated_draft_planner(const Model& model, DraftPlanner::Costs costs);

}  // namespace tidepool
