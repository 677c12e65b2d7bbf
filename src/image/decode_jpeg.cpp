#include <csetjmp>
#include <cstdio>
#include <cstring>

// jpeglib.h uses what <cstdio> declares.
#include <fmt/format.h>
#include <jpeglib.h>

#include <jerror.h>

#include "image/decode_internal.h"

// libjpeg leaves by longjmp, which runs no destructor. So the functions that call it own nothing: all they need lies in
// a JpegReader, and they say by their result whether the library gave up.

namespace tidepool::image_decoders {
namespace {

/// Progressive pictures are read again with every scan; those in use have about ten.
constexpr int kScansMax = 100;

struct JpegReader {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  jpeg_source_mgr input{};
  std::jmp_buf give_up{};
  bool is_created = false;
  int code = 0;  ///< what the library gave up for
  char message[JMSG_LENGTH_MAX] = {};

  JpegReader() = default;
  ~JpegReader() {
    if (is_created) jpeg_destroy_decompress(&info);
  }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;
};

JpegReader& reader_of(j_common_ptr info) {
  return *static_cast<JpegReader*>(info->client_data);
}

[[noreturn]] void leave(j_common_ptr info) {
  JpegReader& reader = reader_of(info);
  reader.code = info->err->msg_code;
  info->err->format_message(info, reader.message);
  std::longjmp(reader.give_up, 1);
}

[[noreturn]] void leave_saying(j_common_ptr info, const char* what) {
  JpegReader& reader = reader_of(info);
  reader.code = JERR_INPUT_EOF;
  std::snprintf(reader.message, sizeof(reader.message), "%s", what);
  std::longjmp(reader.give_up, 1);
}

/// Warnings after which some of the pixels are made up end the reading; others are about padding and markers.
void take_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_JPEG_EOF: leave(info);
    default: ++info->err->num_warnings;
  }
}

void watch_scans(j_common_ptr info) {
  if (info->is_decompressor == FALSE) return;
  const auto* decompress = reinterpret_cast<j_decompress_ptr>(info);
  if (decompress->input_scan_number > kScansMax) leave_saying(info, "it has too many scans");
}

boolean refuse_end(j_decompress_ptr info) {
  leave_saying(reinterpret_cast<j_common_ptr>(info), "the file ends inside the picture");
}

void skip_bytes(j_decompress_ptr info, long count) {
  if (count <= 0) return;
  if (static_cast<size_t>(count) > info->src->bytes_in_buffer) (void)refuse_end(info);
  info->src->next_input_byte += count;
  info->src->bytes_in_buffer -= static_cast<size_t>(count);
}

void do_nothing(j_decompress_ptr /*info*/) {}

/// Up to the size and the colours. False: the library gave up.
bool read_header(JpegReader& reader, std::span<const std::byte> bytes) {
  reader.info.err = jpeg_std_error(&reader.errors);
  reader.info.client_data = &reader;
  reader.errors.error_exit = leave;
  reader.errors.emit_message = take_message;
  if (setjmp(reader.give_up) != 0) return false;
  jpeg_create_decompress(&reader.info);
  reader.is_created = true;
  reader.info.client_data = &reader;
  reader.progress.progress_monitor = watch_scans;
  reader.info.progress = &reader.progress;
  reader.input.next_input_byte = reinterpret_cast<const JOCTET*>(bytes.data());
  reader.input.bytes_in_buffer = bytes.size();
  reader.input.init_source = do_nothing;
  reader.input.fill_input_buffer = refuse_end;
  reader.input.skip_input_data = skip_bytes;
  reader.input.resync_to_restart = jpeg_resync_to_restart;
  reader.input.term_source = do_nothing;
  reader.info.src = &reader.input;
  (void)jpeg_read_header(&reader.info, TRUE);
  return true;
}

/// All rows into `out` [height, width, components]. False: the library gave up.
bool read_rows(JpegReader& reader, J_COLOR_SPACE colours, uint8_t* out) {
  if (setjmp(reader.give_up) != 0) return false;
  reader.info.out_color_space = colours;
  (void)jpeg_start_decompress(&reader.info);
  const size_t row_bytes =
      static_cast<size_t>(reader.info.output_width) * static_cast<size_t>(reader.info.output_components);
  while (reader.info.output_scanline < reader.info.output_height) {
    JSAMPROW row = out + static_cast<size_t>(reader.info.output_scanline) * row_bytes;
    (void)jpeg_read_scanlines(&reader.info, &row, 1);
  }
  return true;
}

[[noreturn]] void refuse(const Source& source, const JpegReader& reader) {
  switch (reader.code) {
    case JERR_BAD_PRECISION:
    case JERR_SOF_UNSUPPORTED:
    case JERR_CONVERSION_NOTIMPL:
    case JERR_NOT_COMPILED:
    case JERR_ARITH_NOTIMPL:
    case JERR_COMPONENT_COUNT: refuse_kind(source, "JPEG", reader.message);
    default: refuse_damaged(source, "JPEG", reader.message);
  }
}

/// (a * b) / 255, rounded as Pillow does.
uint32_t scaled(uint32_t a, uint32_t b) {
  const uint32_t product = a * b + 128;
  return ((product >> 8) + product) >> 8;
}

/// Four inks as Adobe's programs write them, inverted, to RGB with Pillow's formula: black paper less each ink.
RgbImage convert_inks(const std::vector<uint8_t>& inks, size_t width, size_t height) {
  RgbImage image(width, height);
  for (size_t i = 0; i < width * height; ++i) {
    const uint32_t light = inks[4 * i + 3];
    for (size_t c = 0; c < 3; ++c)
      image.pixels[3 * i + c] = static_cast<uint8_t>(light - scaled(255U - inks[4 * i + c], light));
  }
  return image;
}

}  // namespace

RgbImage decode_jpeg(const Source& source) {
  JpegReader reader;
  if (!read_header(reader, source.bytes)) refuse(source, reader);
  const size_t width = reader.info.image_width;
  const size_t height = reader.info.image_height;
  check_size(source, width, height);
  const J_COLOR_SPACE stored = reader.info.jpeg_color_space;
  if (stored == JCS_CMYK || stored == JCS_YCCK) {
    std::vector<uint8_t> inks(width * height * 4);
    if (!read_rows(reader, JCS_CMYK, inks.data())) refuse(source, reader);
    return convert_inks(inks, width, height);
  }
  if (stored == JCS_UNKNOWN)
    refuse_kind(source, "JPEG", fmt::format("it has {} colour components", reader.info.num_components));
  RgbImage image(width, height);
  if (!read_rows(reader, JCS_RGB, image.pixels.data())) refuse(source, reader);
  return image;
}

}  // namespace tidepool::image_decoders
