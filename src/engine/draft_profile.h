#pragma once

#include <chrono>
#include <functional>

#include "engine/draft_planner.h"
#include "model/model.h"

namespace tidepool {

/// Time that only goes forward; a steady clock outside tests.
using DraftClock = std::function<std::chrono::duration<double>()>;
[[nodiscard]] DraftClock steady_draft_clock();

/// A planner from this machine's step times, measured with a sequence of its own: of one row, of a whole block behind
/// the last token, then of what lies between, as long as `budget` lasts (a pass that was begun is ended). Row counts
/// not reached are estimated from weight_costs(). Only for a model with a draft head. `arena` is scratch.
[[nodiscard]] DraftPlanner profile_drafts(const Model& model, const Runtime& runtime, Arena& arena,
                                          const DraftClock& clock,
                                          std::chrono::duration<double> budget = std::chrono::milliseconds(1500));

/// A planner whose costs follow from the config and not from any clock: what it decides can be repeated anywhere.
[[nodiscard]] DraftPlanner nominal_draft_planner(const Model& model);

}  // namespace tidepool
