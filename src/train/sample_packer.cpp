#include "train/sample_packer.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "train/random_stream.h"

namespace tidepool {

std::vector<size_t> pack_best_fit(const std::vector<size_t>& lengths, size_t rows) {
  std::vector<size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>{}, [&](size_t sample) { return lengths[sample]; });
  std::vector<size_t> batch_of(lengths.size());
  std::set<std::pair<size_t, size_t>> open;  // room that is left, batch
  size_t count = 0;
  for (const size_t sample : order) {
    auto best = open.lower_bound({lengths[sample], 0});
    const auto [room, batch] = best != open.end() ? *best : std::pair(rows, count++);
    if (best != open.end()) open.erase(best);
    batch_of[sample] = batch;
    if (room > lengths[sample]) open.emplace(room - lengths[sample], batch);
  }
  return batch_of;
}

TokenBatch make_batch(const std::vector<Sample>& samples) {
  TokenBatch batch;
  size_t rows = 0;
  for (const Sample& sample : samples)
    rows += sample.ids.size();
  batch.ids.reserve(rows);
  batch.targets.reserve(rows);
  batch.weights.reserve(rows);
  batch.segments.reserve(samples.size());
  for (const Sample& sample : samples) {
    batch.segments.push_back({.begin = batch.ids.size(), .count = sample.ids.size(), .part = sample.part});
    for (const SamplePicture& picture : sample.pictures)
      batch.pictures.push_back({batch.ids.size() + picture.begin, picture.image});
    batch.ids.insert(batch.ids.end(), sample.ids.begin(), sample.ids.end());
    batch.targets.insert(batch.targets.end(), sample.ids.begin() + 1, sample.ids.end());
    batch.targets.push_back(0);  // has no weight
    batch.weights.insert(batch.weights.end(), sample.weights.begin(), sample.weights.end() - 1);
    batch.weights.push_back(0);
  }
  return batch;
}

SamplePacker::SamplePacker(std::vector<MixturePart> parts, const SamplePackerOptions& options)
    : parts_(std::move(parts)), options_(options) {
  if (parts_.empty() || options_.rows < 2 || options_.window_batches == 0) {
    throw Error(ErrorCode::kInvalidArgument, "a mixture needs a source, two rows and one batch at least");
  }
  for (const MixturePart& part : parts_) {
    if (!(part.weight > 0)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("source {} has the weight {}; it must be above 0", part.source->name(), part.weight));
    }
    weight_sum_ += part.weight;
  }
  position_.parts.resize(parts_.size());
}

void SamplePacker::seek(const Position& position) {
  if (position.parts.size() != parts_.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the position is one of {} sources, and the mixture has {}; begin this stage anew",
                            position.parts.size(), parts_.size()));
  }
  for (size_t p = 0; p < parts_.size(); ++p) {
    const auto tokens = static_cast<double>(position.parts[p].tokens);
    const double low = quota(p, position.window);
    constexpr double kCountedMax = 0x1p62;  // far below where a count of tokens would begin again
    if (tokens >= low && tokens < low + static_cast<double>(options_.rows) && tokens < kCountedMax) continue;
    throw Error(
        ErrorCode::kCorrupt,
        fmt::format("the state of the run has {} tokens of {} before window {}, and a run comes there behind {} "
                    "to {}; begin it anew",
                    position.parts[p].tokens, parts_[p].source->name(), position.window, low,
                    low + static_cast<double>(options_.rows)));
  }
  position_ = position;
  has_window_ = false;
}

double SamplePacker::quota(size_t part, uint64_t windows) const {
  const double window_tokens = static_cast<double>(options_.rows * options_.window_batches);
  return parts_[part].weight / weight_sum_ * window_tokens * static_cast<double>(windows);
}

std::vector<Sample> SamplePacker::take_samples() {
  std::vector<Sample> samples;
  next_parts_ = position_.parts;
  for (size_t p = 0; p < parts_.size(); ++p) {
    const MixturePart& part = parts_[p];
    PartPosition& at = next_parts_[p];
    const double end = quota(p, position_.window + 1);
    while (static_cast<double>(at.tokens) < end) {
      Sample sample = part.source->make(at.place++);
      if (sample.ids.size() > options_.rows) {
        throw Error(
            ErrorCode::kInvalidArgument,
            fmt::format("{}: sample {} has {} tokens, and the stage's batch_rows is {}; samples are not cut, so give "
                        "the stage batch_rows of {} or more",
                        part.source->name(), at.place - 1, sample.ids.size(), options_.rows, sample.ids.size()));
      }
      sample.part = p;
      for (float& weight : sample.weights)
        weight *= static_cast<float>(part.loss_weight);
      at.tokens += sample.ids.size();
      samples.push_back(std::move(sample));
    }
  }
  return samples;
}

void SamplePacker::fill_window() {
  std::vector<Sample> samples = take_samples();
  std::vector<size_t> lengths;
  lengths.reserve(samples.size());
  for (const Sample& sample : samples)
    lengths.push_back(sample.ids.size());
  const std::vector<size_t> batch_of = pack_best_fit(lengths, options_.rows);
  const size_t count = batch_of.empty() ? 0 : *std::ranges::max_element(batch_of) + 1;
  batches_.assign(count, {});
  for (size_t s = 0; s < samples.size(); ++s) {
    const uint64_t place = shuffled_index(options_.seed, position_.window, batch_of[s], count);
    batches_[place].push_back(std::move(samples[s]));
  }
  const size_t tokens = std::accumulate(lengths.begin(), lengths.end(), size_t{0});
  padding_share_ = count == 0 ? 0 : 1 - static_cast<double>(tokens) / static_cast<double>(count * options_.rows);
  has_window_ = true;
}

TokenBatch SamplePacker::next() {
  while (!has_window_ || position_.batch >= batches_.size()) {
    if (has_window_) position_ = {.window = position_.window + 1, .batch = 0, .parts = next_parts_};
    fill_window();
  }
  return make_batch(batches_[position_.batch++]);
}

}  // namespace tidepool
