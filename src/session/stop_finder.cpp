#include "session/stop_finder.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tidepool {

StopFinder::StopFinder(std::vector<std::string> stops) : stops_(std::move(stops)) {
  if (std::ranges::any_of(stops_, &std::string::empty))
    throw Error(ErrorCode::kInvalidArgument, "stop: a stop string is empty; leave it out");
}

/// The longest stop string whose last byte is the one before `end` of what is held.
std::optional<size_t> StopFinder::stop_ending_at(size_t end) const {
  std::optional<size_t> best;
  for (size_t i = 0; i < stops_.size(); ++i) {
    if (!std::string_view(held_).substr(0, end).ends_with(stops_[i])) continue;
    if (!best || stops_[i].size() > stops_[*best].size()) best = i;
  }
  return best;
}

/// Length of the longest end of what is held that begins a stop string.
size_t StopFinder::held_suffix_bytes() const {
  size_t longest = 0;
  for (const std::string& stop : stops_) {
    for (size_t bytes = std::min(stop.size() - 1, held_.size()); bytes > longest; --bytes) {
      if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, bytes))) longest = bytes;
    }
  }
  return longest;
}

std::string StopFinder::feed(std::string_view piece) {
  if (met_) return {};
  const size_t known = held_.size();
  held_ += piece;
  for (size_t end = known + 1; end <= held_.size() && !stops_.empty(); ++end) {
    met_ = stop_ending_at(end);
    if (met_) return std::exchange(held_, {}).substr(0, end - stops_[*met_].size());
  }
  const size_t certain = held_.size() - held_suffix_bytes();
  std::string text = held_.substr(0, certain);
  held_.erase(0, certain);
  return text;
}

std::string StopFinder::finish() {
  return std::exchange(held_, {});
}

}  // namespace tidepool
