#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "model/probe.h"

namespace tidepool {

/// Keeps what a trace asked for, by key ("stream.3", "embed") and by position or entry.
class TraceRecorder final : public Probe {
 public:
  template <typename T>
  using Rows = std::map<int64_t, std::vector<T>>;

  /// What a name and its layer (-1: none) are kept under: "embed", "stream.3".
  [[nodiscard]] static std::string key_of(std::string_view name, int64_t layer);

  /// Keep rows recorded under `key`.
  void request(const std::string& key) { requested_.insert(key); }
  /// Keep these positions only; entries of global KV are always kept whole.
  void limit_positions(std::set<int64_t> positions) {
    positions_ = std::move(positions);
    is_limited_ = true;
  }

  [[nodiscard]] bool wants(std::string_view name) override;
  void record(std::string_view name, int64_t layer, int64_t first, Span2d<const float> values) override;
  void record_ints(std::string_view name, int64_t layer, int64_t index, std::span<const int64_t> values) override;
  /// Logits of consecutive positions; kept like recorded rows, under "logits".
  void record_logits(int64_t first, Span2d<const float> values) { record("logits", -1, first, values); }

  /// What was recorded under `key`; empty when nothing was.
  [[nodiscard]] const Rows<float>& floats(const std::string& key) const;
  [[nodiscard]] const Rows<int64_t>& ints(const std::string& key) const;

  /// True for outputs that have a row per global entry instead of one per position.
  [[nodiscard]] static bool is_per_entry(std::string_view name);

 private:
  [[nodiscard]] bool keeps(std::string_view name, int64_t index) const;

  std::set<std::string, std::less<>> requested_;
  std::set<int64_t> positions_;
  bool is_limited_ = false;
  std::map<std::string, Rows<float>, std::less<>> floats_;
  std::map<std::string, Rows<int64_t>, std::less<>> ints_;
};

}  // namespace tidepool
