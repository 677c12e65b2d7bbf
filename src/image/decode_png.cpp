#include <csetjmp>
#include <cstdio>
#include <cstring>

#include <png.h>

#include "image/decode_internal.h"

// libpng leaves by longjmp, which runs no destructor. So the functions that call it own nothing: all they need lies in
// a PngReader, and they say by their result whether the library gave up.

namespace tidepool::image_decoders {
namespace {

/// Bytes that one ancillary chunk (a colour profile, a comment) may unpack to, and how many chunks are kept.
constexpr png_alloc_size_t kChunkBytesMax = png_alloc_size_t{8} << 20;
constexpr png_uint_32 kChunksMax = 1000;

struct PngReader {
  png_structp png = nullptr;
  png_infop info = nullptr;
  const std::byte* next = nullptr;
  size_t rest = 0;
  char message[200] = {};

  PngReader() = default;
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;
};

[[noreturn]] void leave(png_structp png, png_const_charp what) {
  auto& reader = *static_cast<PngReader*>(png_get_error_ptr(png));
  std::snprintf(reader.message, sizeof(reader.message), "%s", what);
  png_longjmp(png, 1);
}

/// Warnings are about chunks that do not change the pixels.
void ignore_warning(png_structp /*png*/, png_const_charp /*what*/) {}

void read_bytes(png_structp png, png_bytep out, size_t count) {
  auto& reader = *static_cast<PngReader*>(png_get_io_ptr(png));
  if (count > reader.rest) png_error(png, "the file ends inside the picture");
  std::memcpy(out, reader.next, count);
  reader.next += count;
  reader.rest -= count;
}

/// Up to the first row. False: the library gave up.
bool read_header(PngReader& reader) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  // The size is judged by check_size(), whose message says more.
  png_set_user_limits(reader.png, 0x7fffffff, 0x7fffffff);
  png_set_chunk_malloc_max(reader.png, kChunkBytesMax);
  png_set_chunk_cache_max(reader.png, kChunksMax);
  png_set_read_fn(reader.png, &reader, read_bytes);
  png_read_info(reader.png, reader.info);
  return true;
}

bool is_grey16(const PngReader& reader) {
  return png_get_color_type(reader.png, reader.info) == PNG_COLOR_TYPE_GRAY &&
         png_get_bit_depth(reader.png, reader.info) == 16;
}

/// A row of 16-bit grey, as it lies in the file, to RGB in the same memory, from behind: Pillow reads such files as
/// integers, and what is above 255 becomes white. (Of all other 16-bit samples it takes the upper byte.)
void clip_grey16(uint8_t* row, size_t width) {
  for (size_t x = width; x-- > 0;) {
    const uint8_t value = row[2 * x] != 0 ? uint8_t{255} : row[2 * x + 1];
    std::memset(row + RgbImage::kChannels * x, value, RgbImage::kChannels);
  }
}

/// All rows as RGB of 8 bits into `out` [height, width, 3], those of 16-bit grey as they are. False: the library gave
/// up.
bool read_rows(PngReader& reader, uint8_t* out) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  const bool is_raw = is_grey16(reader);
  if (!is_raw) {
    png_set_expand(reader.png);       // palettes to RGB, grey of 1, 2 and 4 bits to 8, a transparent colour to alpha
    png_set_strip_16(reader.png);     // the upper byte
    png_set_strip_alpha(reader.png);  // dropped, not blended
    png_set_gray_to_rgb(reader.png);
  }
  const int passes = png_set_interlace_handling(reader.png);
  png_read_update_info(reader.png, reader.info);
  const png_uint_32 height = png_get_image_height(reader.png, reader.info);
  const size_t width = png_get_image_width(reader.png, reader.info);
  if (png_get_rowbytes(reader.png, reader.info) != width * (is_raw ? 2 : RgbImage::kChannels))
    png_error(reader.png, "its rows are not RGB");
  for (int pass = 0; pass < passes; ++pass) {
    for (png_uint_32 y = 0; y < height; ++y)
      png_read_row(reader.png, out + y * width * RgbImage::kChannels, nullptr);
  }
  return true;
}

}  // namespace

RgbImage decode_png(const Source& source) {
  PngReader reader;
  reader.next = source.bytes.data();
  reader.rest = source.bytes.size();
  reader.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reader, leave, ignore_warning);
  if (reader.png != nullptr) reader.info = png_create_info_struct(reader.png);
  if (reader.info == nullptr)
    throw Error(ErrorCode::kResourceExhausted, "libpng could not begin: there is no memory, or it is another version");
  if (!read_header(reader)) refuse_damaged(source, "PNG", reader.message);
  const size_t width = png_get_image_width(reader.png, reader.info);
  const size_t height = png_get_image_height(reader.png, reader.info);
  check_size(source, width, height);
  const bool clips = is_grey16(reader);  // before reading says what the rows became
  RgbImage image(width, height);
  if (!read_rows(reader, image.pixels.data())) refuse_damaged(source, "PNG", reader.message);
  for (size_t y = 0; clips && y < height; ++y)
    clip_grey16(image.pixels.data() + y * width * RgbImage::kChannels, width);
  return image;
}

}  // namespace tidepool::image_decoders
