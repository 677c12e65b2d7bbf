#include "image/encode_png.h"

#include <png.h>

#include "base/error.h"

namespace tidepool {

std::string encode_png(const RgbImage& image) {
  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  header.width = static_cast<png_uint_32>(image.width);
  header.height = static_cast<png_uint_32>(image.height);
  header.format = PNG_FORMAT_RGB;
  header.flags = PNG_IMAGE_FLAG_FAST;
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(header);  // enough for any pixels of this size
  std::string file(bytes, '\0');
  if (png_image_write_to_memory(&header, file.data(), &bytes, 0, image.pixels.data(), 0, nullptr) == 0) {
    throw Error(ErrorCode::kResourceExhausted, std::string("a picture cannot be written as PNG: ") + header.message);
  }
  file.resize(bytes);
  return file;
}

}  // namespace tidepool
