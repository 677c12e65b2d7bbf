#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/span2d.h"

namespace tidepool {

/// Looks on while one sequence passes through the layers; for tests and `tidepool trace`. Null in ordinary use.
/// Names are those of the golden vectors ("stream", "topk", ...); `layer` is -1 where there is none.
class Probe {
 public:
  Probe() = default;
  virtual ~Probe() = default;
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  /// Whether to compute values that exist for the probe alone.
  [[nodiscard]] virtual bool wants(std::string_view name) = 0;
  /// Row r of `values` belongs to position (or global entry) first + r.
  virtual void record(std::string_view name, int64_t layer, int64_t first, Span2d<const float> values) = 0;
  /// One row of integers, which belongs to position `index` (to the Engram layer's slot `layer` for "engram_hash").
  virtual void record_ints(std::string_view name, int64_t layer, int64_t index, std::span<const int64_t> values) = 0;
};

}  // namespace tidepool
