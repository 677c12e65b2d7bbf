#include "engine/trace_recorder.h"

#include <algorithm>

#include <fmt/format.h>

namespace tidepool {

std::string TraceRecorder::key_of(std::string_view name, int64_t layer) {
  return layer < 0 ? std::string(name) : fmt::format("{}.{}", name, layer);
}

bool TraceRecorder::is_per_entry(std::string_view name) {
  return name == "latent" || name == "compress_kv" || name == "index_k";
}

bool TraceRecorder::wants(std::string_view name) {
  // The scores bring the selection's margin and the candidates with them.
  const auto is_asked = [&](std::string_view base) {
    return std::ranges::any_of(
        requested_, [&](const std::string& key) { return std::string_view(key).substr(0, key.find('.')) == base; });
  };
  if (name == "index_score") return is_asked(name) || is_asked("topk_margin") || is_asked("candidates");
  return is_asked(name);
}

bool TraceRecorder::keeps(std::string_view name, int64_t index) const {
  return !is_limited_ || is_per_entry(name) || positions_.contains(index);
}

void TraceRecorder::record(std::string_view name, int64_t layer, int64_t first, Span2d<const float> values) {
  const std::string key = key_of(name, layer);
  if (!requested_.contains(key)) return;
  Rows<float>& rows = floats_[key];
  for (size_t row = 0; row < values.rows; ++row) {
    const int64_t index = first + static_cast<int64_t>(row);
    if (keeps(name, index)) rows[index].assign(values.row(row).begin(), values.row(row).end());
  }
}

void TraceRecorder::record_ints(std::string_view name, int64_t layer, int64_t index, std::span<const int64_t> values) {
  const std::string key = key_of(name, layer);
  if (requested_.contains(key) && keeps(name, index)) ints_[key][index].assign(values.begin(), values.end());
}

const TraceRecorder::Rows<float>& TraceRecorder::floats(const std::string& key) const {
  static const Rows<float> none;
  const auto found = floats_.find(key);
  return found == floats_.end() ? none : found->second;
}

const TraceRecorder::Rows<int64_t>& TraceRecorder::ints(const std::string& key) const {
  static const Rows<int64_t> none;
  const auto found = ints_.find(key);
  return found == ints_.end() ? none : found->second;
}

}  // namespace tidepool
