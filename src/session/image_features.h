#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "model/vision.h"
#include "session/image_prompt.h"

namespace tidepool {

using VisionFeaturesPtr = std::shared_ptr<const VisionFeatures>;

/// What the vision tower made of pictures lately, by their digests. Bounded; those that were not used for longest go
/// first. Thread-safe, but whoever asks for features must be the one who may use the runtime now. Model and threads
/// must outlive it.
class ImageFeatureCache {
 public:
  /// Some 25 of the largest pictures of the released model.
  static constexpr size_t kBytesMax = size_t{512} << 20;

  ImageFeatureCache(const Model& model, const Runtime& runtime, size_t bytes_max = kBytesMax)
      : model_(model), runtime_(runtime), bytes_max_(bytes_max) {}

  /// Features of each picture, in order. Those that are not there are computed together.
  [[nodiscard]] std::vector<VisionFeaturesPtr> get(std::span<const RequestImagePtr> pictures);

  struct Stats {
    size_t pictures = 0;
    size_t bytes = 0;
    uint64_t hits = 0;
    uint64_t computed = 0;
  };
  [[nodiscard]] Stats stats() const;

 private:
  struct Entry {
    Digest digest{};
    VisionFeaturesPtr features;
  };
  [[nodiscard]] VisionFeaturesPtr find(const Digest& digest);
  void keep(const Digest& digest, VisionFeaturesPtr features);

  const Model& model_;
  const Runtime runtime_;
  const size_t bytes_max_;
  mutable std::mutex mutex_;
  // All below under the mutex.
  std::list<Entry> entries_;  ///< last used first
  std::map<Digest, std::list<Entry>::iterator> by_digest_;
  Stats stats_;
};

/// The embeddings of one prompt's image positions, computed when a forward call is about to read them: a picture inside
/// a known prefix costs nothing. One caller at a time.
class PromptImageRows final : public ImageRowSource {
 public:
  PromptImageRows(std::shared_ptr<ImageFeatureCache> cache, PromptImages images)
      : cache_(std::move(cache)), images_(std::move(images)) {}

  [[nodiscard]] std::span<const ImageRows> rows(int64_t begin, int64_t end) override;

 private:
  std::shared_ptr<ImageFeatureCache> cache_;
  PromptImages images_;
  size_t first_ = 0;                     ///< picture of held_[0]
  std::vector<VisionFeaturesPtr> held_;  ///< of the last call, so that a span in several chunks is computed once
  std::vector<ImageRows> rows_;
};

}  // namespace tidepool
