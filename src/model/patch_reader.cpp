#include "model/patch_reader.h"

#include "formats/bf16.h"

namespace tidepool {

PatchReader::PatchReader(size_t patch) : patch_(patch) {
  for (size_t i = 0; i < values_.size(); ++i)
    values_[i] = to_float(to_bf16((static_cast<float>(i) / 255.0F - 0.5F) / 0.5F));
}

void PatchReader::read(const PreparedImage& image, size_t index, std::span<float> out) const {
  const auto columns = static_cast<size_t>(image.plan.patch_columns);
  const size_t top = index / columns * patch_;
  const size_t left = index % columns * patch_;
  size_t i = 0;
  for (size_t channel = 0; channel < RgbImage::kChannels; ++channel) {
    for (size_t y = 0; y < patch_; ++y) {
      const std::span<const uint8_t> pixels = image.canvas.row(top + y);
      for (size_t x = 0; x < patch_; ++x)
        out[i++] = values_[pixels[(left + x) * RgbImage::kChannels + channel]];
    }
  }
}

}  // namespace tidepool
