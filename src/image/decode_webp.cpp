#include <fmt/format.h>
#include <webp/decode.h>
#include <webp/demux.h>

#include <algorithm>
#include <memory>

#include "image/decode_internal.h"

namespace tidepool::image_decoders {
namespace {

std::string_view status_text(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_NOT_ENOUGH_DATA:
    case VP8_STATUS_SUSPENDED: return "the file ends inside the picture";
    case VP8_STATUS_OUT_OF_MEMORY: return "there is no memory for it";
    case VP8_STATUS_UNSUPPORTED_FEATURE: return "it uses a feature that libwebp does not know";
    default: return "its data contradict themselves";
  }
}

/// The first frame on its canvas, which is black where the frame does not reach.
RgbImage decode_first_frame(const Source& source) {
  const WebPData data{reinterpret_cast<const uint8_t*>(source.bytes.data()), source.bytes.size()};
  WebPAnimDecoderOptions options;
  if (WebPAnimDecoderOptionsInit(&options) == 0) refuse_kind(source, "WebP", "libwebp is another version");
  options.color_mode = MODE_RGBA;
  options.use_threads = 0;
  const std::unique_ptr<WebPAnimDecoder, decltype(&WebPAnimDecoderDelete)> decoder(WebPAnimDecoderNew(&data, &options),
                                                                                   WebPAnimDecoderDelete);
  if (decoder == nullptr) refuse_damaged(source, "WebP", "its animation cannot be read");
  WebPAnimInfo info;
  uint8_t* canvas = nullptr;  // the decoder's
  int timestamp = 0;
  if (WebPAnimDecoderGetInfo(decoder.get(), &info) == 0 ||
      WebPAnimDecoderGetNext(decoder.get(), &canvas, &timestamp) == 0)
    refuse_damaged(source, "WebP", "its first frame cannot be read");
  RgbImage image(info.canvas_width, info.canvas_height);
  for (size_t i = 0; i < image.width * image.height; ++i)
    std::copy_n(canvas + 4 * i, RgbImage::kChannels, image.pixels.data() + RgbImage::kChannels * i);
  return image;
}

}  // namespace

RgbImage decode_webp(const Source& source) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(source.bytes.data());
  WebPDecoderConfig config;
  if (WebPInitDecoderConfig(&config) == 0) refuse_kind(source, "WebP", "libwebp is another version");
  VP8StatusCode status = WebPGetFeatures(bytes, source.bytes.size(), &config.input);
  if (status != VP8_STATUS_OK) refuse_damaged(source, "WebP", status_text(status));
  const auto width = static_cast<size_t>(std::max(config.input.width, 0));
  const auto height = static_cast<size_t>(std::max(config.input.height, 0));
  check_size(source, width, height);
  if (config.input.has_animation != 0) return decode_first_frame(source);
  RgbImage image(width, height);
  config.output.colorspace = MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = image.pixels.data();
  config.output.u.RGBA.stride = static_cast<int>(width * RgbImage::kChannels);
  config.output.u.RGBA.size = image.pixels.size();
  status = WebPDecode(bytes, source.bytes.size(), &config);
  WebPFreeDecBuffer(&config.output);
  if (status == VP8_STATUS_UNSUPPORTED_FEATURE) refuse_kind(source, "WebP", status_text(status));
  if (status != VP8_STATUS_OK) refuse_damaged(source, "WebP", status_text(status));
  return image;
}

}  // namespace tidepool::image_decoders
