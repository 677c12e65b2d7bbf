// Any bytes as a recipe must be read, with every number in its range, or refused with an Error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "train/recipe.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const tidepool::Recipe recipe = tidepool::parse_recipe({reinterpret_cast<const char*>(data), size}, "fuzz");
    for (const tidepool::RecipeStage& stage : recipe.stages) {
      const tidepool::LearningRateSchedule schedule = stage.schedule();
      TIDEPOOL_CHECK(stage.steps() >= 1, "a stage without steps was read");
      TIDEPOOL_CHECK(schedule.at(0) <= schedule.peak, "a rate above the peak");
      TIDEPOOL_CHECK(schedule.at(stage.steps() - 1) >= 0, "a rate below 0");
      for (const tidepool::RecipePart& part : stage.mixture) {
        TIDEPOOL_CHECK(part.length_min <= part.length_max, "lengths out of order");
        TIDEPOOL_CHECK(part.length_max <= stage.batch_rows, "samples longer than a batch");
        TIDEPOOL_CHECK(part.texts.empty() != part.task.empty(), "neither texts nor a task, or both");
      }
    }
  } catch (const tidepool::Error&) {
    // Refused, as most bytes must be.
  }
  return 0;
}
