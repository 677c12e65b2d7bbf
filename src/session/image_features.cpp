#include "session/image_features.h"

#include <utility>

#include "base/check.h"

namespace tidepool {

VisionFeaturesPtr ImageFeatureCache::find(const Digest& digest) {
  const std::lock_guard lock(mutex_);
  const auto found = by_digest_.find(digest);
  if (found == by_digest_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  ++stats_.hits;
  return found->second->features;
}

void ImageFeatureCache::keep(const Digest& digest, VisionFeaturesPtr features) {
  const std::lock_guard lock(mutex_);
  ++stats_.computed;
  if (by_digest_.contains(digest) || features->bytes() > bytes_max_) return;
  stats_.bytes += features->bytes();
  entries_.push_front({digest, std::move(features)});
  by_digest_[digest] = entries_.begin();
  while (stats_.bytes > bytes_max_) {
    stats_.bytes -= entries_.back().features->bytes();
    by_digest_.erase(entries_.back().digest);
    entries_.pop_back();
  }
  stats_.pictures = entries_.size();
}

std::vector<VisionFeaturesPtr> ImageFeatureCache::get(std::span<const RequestImagePtr> pictures) {
  std::vector<VisionFeaturesPtr> result;
  std::vector<const PreparedImage*> missing;
  std::map<Digest, size_t> place_of;  // among the missing ones: a picture may be there twice
  for (const RequestImagePtr& picture : pictures) {
    result.push_back(find(picture->digest));
    if (result.back() != nullptr || !place_of.emplace(picture->digest, missing.size()).second) continue;
    missing.push_back(&picture->prepared);
  }
  if (missing.empty()) return result;
  std::vector<VisionFeaturesPtr> computed;
  for (VisionFeatures& features : encode_images(model_, runtime_, missing))
    computed.push_back(std::make_shared<const VisionFeatures>(std::move(features)));
  for (const auto& [digest, place] : place_of)
    keep(digest, computed[place]);
  for (size_t i = 0; i < pictures.size(); ++i)
    if (result[i] == nullptr) result[i] = computed[place_of.at(pictures[i]->digest)];
  return result;
}

ImageFeatureCache::Stats ImageFeatureCache::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

std::span<const ImageRows> PromptImageRows::rows(int64_t begin, int64_t end) {
  const std::span<const ImageSpan> touched = touching_images(images_.spans, begin, end);
  rows_.clear();
  if (touched.empty()) {
    held_.clear();
    return rows_;
  }
  const auto first = static_cast<size_t>(touched.data() - images_.spans.data());
  // A span that goes on from the last call is held already, whether or not the cache still has it.
  std::vector<VisionFeaturesPtr> features;
  for (size_t i = first; i < first + touched.size() && i >= first_ && i - first_ < held_.size(); ++i)
    features.push_back(held_[i - first_]);
  const size_t reused = features.size();
  for (VisionFeaturesPtr& one :
       cache_->get(std::span(images_.pictures).subspan(first + reused, touched.size() - reused)))
    features.push_back(std::move(one));
  held_ = std::move(features);
  first_ = first;
  for (size_t i = 0; i < touched.size(); ++i) {
    TIDEPOOL_CHECK(static_cast<int64_t>(held_[i]->tokens) == touched[i].end - touched[i].begin,
                   "a span is as long as its picture's features");
    rows_.push_back({touched[i].begin, held_[i]->rows()});
  }
  return rows_;
}

}  // namespace tidepool
