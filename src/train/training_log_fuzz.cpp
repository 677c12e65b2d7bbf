// Any bytes as the log of a training run must be read, and written again as they mean, or refused with an Error.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "train/training_log.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const std::vector<tidepool::TrainingStep> steps = tidepool::parse_training_log(text, "fuzz");
    std::string written;
    for (const tidepool::TrainingStep& step : steps)
      written += tidepool::log_line(step) + "\n";
    const std::vector<tidepool::TrainingStep> again = tidepool::parse_training_log(written, "again");
    TIDEPOOL_CHECK(again.size() == steps.size(), "another number of steps after a round trip");
    for (size_t i = 0; i < steps.size(); ++i)
      TIDEPOOL_CHECK(tidepool::log_line(again[i]) == tidepool::log_line(steps[i]), "another step after a round trip");
  } catch (const tidepool::Error& error) {
    TIDEPOOL_CHECK(std::string_view(error.what()).starts_with("fuzz:"), "an error that does not name the line");
  }
  return 0;
}
