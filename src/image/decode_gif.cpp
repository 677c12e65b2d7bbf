#include <fmt/format.h>
#include <gif_lib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "image/decode_internal.h"

namespace tidepool::image_decoders {
namespace {

struct Input {
  const std::byte* next;
  size_t rest;
};

int read_bytes(GifFileType* file, GifByteType* out, int count) {
  auto& input = *static_cast<Input*>(file->UserData);
  const size_t taken = std::min(input.rest, static_cast<size_t>(std::max(count, 0)));
  std::memcpy(out, input.next, taken);
  input.next += taken;
  input.rest -= taken;
  return static_cast<int>(taken);
}

struct Close {
  void operator()(GifFileType* file) const { (void)DGifCloseFile(file, nullptr); }
};
using File = std::unique_ptr<GifFileType, Close>;

[[noreturn]] void refuse(const Source& source, int code) {
  const char* text = GifErrorString(code);
  refuse_damaged(source, "GIF", text != nullptr ? text : "its data contradict themselves");
}

/// Reads an extension block to its end; returns the transparent index where it is a graphics control block that names
/// one.
std::optional<uint8_t> read_extension(const Source& source, GifFileType* file) {
  int code = 0;
  GifByteType* block = nullptr;
  if (DGifGetExtension(file, &code, &block) == GIF_ERROR) refuse(source, file->Error);
  std::optional<uint8_t> transparent;
  while (block != nullptr) {
    GraphicsControlBlock control;
    if (code == GRAPHICS_EXT_FUNC_CODE && DGifExtensionToGCB(block[0], block + 1, &control) == GIF_OK &&
        control.TransparentColor != NO_TRANSPARENT_COLOR)
      transparent = static_cast<uint8_t>(control.TransparentColor);
    if (DGifGetExtensionNext(file, &block) == GIF_ERROR) refuse(source, file->Error);
  }
  return transparent;
}

/// Goes to the first picture; returns its transparent index, if there is one.
std::optional<uint8_t> find_picture(const Source& source, GifFileType* file) {
  std::optional<uint8_t> transparent;
  while (true) {
    GifRecordType type = UNDEFINED_RECORD_TYPE;
    if (DGifGetRecordType(file, &type) == GIF_ERROR) refuse(source, file->Error);
    if (type == TERMINATE_RECORD_TYPE) refuse_damaged(source, "GIF", "it holds no picture");
    if (type == EXTENSION_RECORD_TYPE) {
      if (const std::optional<uint8_t> found = read_extension(source, file)) transparent = found;
    } else if (type == IMAGE_DESC_RECORD_TYPE) {
      if (DGifGetImageDesc(file) == GIF_ERROR) refuse(source, file->Error);
      return transparent;
    }
  }
}

/// The colour of each index; without a palette, or behind its end, the grey of that number, as in Pillow.
std::array<std::array<uint8_t, 3>, 256> make_palette(const GifFileType& file) {
  std::array<std::array<uint8_t, 3>, 256> palette{};
  for (size_t i = 0; i < palette.size(); ++i)
    palette[i].fill(static_cast<uint8_t>(i));
  const ColorMapObject* map = file.Image.ColorMap != nullptr ? file.Image.ColorMap : file.SColorMap;
  for (int i = 0; map != nullptr && i < std::min(map->ColorCount, 256); ++i) {
    const GifColorType& colour = map->Colors[i];
    palette[static_cast<size_t>(i)] = {colour.Red, colour.Green, colour.Blue};
  }
  return palette;
}

/// The order of an interlaced picture's rows: every 8th, those between, and so on.
std::vector<size_t> row_order(size_t height, bool is_interlaced) {
  std::vector<size_t> order;
  order.reserve(height);
  const auto add = [&](size_t first, size_t step) {
    for (size_t y = first; y < height; y += step)
      order.push_back(y);
  };
  if (!is_interlaced) {
    add(0, 1);
    return order;
  }
  add(0, 8);
  add(4, 8);
  add(2, 4);
  add(1, 2);
  return order;
}

}  // namespace

RgbImage decode_gif(const Source& source) {
  Input input{source.bytes.data(), source.bytes.size()};
  int error = 0;
  const File file(DGifOpen(&input, read_bytes, &error));
  if (file == nullptr) refuse(source, error);
  const std::optional<uint8_t> transparent = find_picture(source, file.get());
  const GifImageDesc& frame = file->Image;
  if (frame.Left < 0 || frame.Top < 0 || frame.Width < 1 || frame.Height < 1)
    refuse_damaged(source, "GIF", fmt::format("its picture is {} x {}", frame.Width, frame.Height));
  const auto left = static_cast<size_t>(frame.Left);
  const auto top = static_cast<size_t>(frame.Top);
  const auto frame_width = static_cast<size_t>(frame.Width);
  const auto frame_height = static_cast<size_t>(frame.Height);
  // A frame that does not fit its canvas widens it, as in Pillow.
  const size_t width = std::max(left + frame_width, static_cast<size_t>(std::max(file->SWidth, 0)));
  const size_t height = std::max(top + frame_height, static_cast<size_t>(std::max(file->SHeight, 0)));
  check_size(source, width, height);

  const auto palette = make_palette(*file);
  RgbImage image(width, height);
  const auto put = [&](size_t x, size_t y, uint8_t index) {
    std::ranges::copy(palette[index], image.row(y).begin() + static_cast<ptrdiff_t>(x * RgbImage::kChannels));
  };
  if (frame_width != width || frame_height != height) {
    for (size_t y = 0; y < height; ++y)
      for (size_t x = 0; x < width; ++x)
        put(x, y, transparent.value_or(0));
  }
  std::vector<GifPixelType> line(frame_width);
  for (const size_t y : row_order(frame_height, frame.Interlace)) {
    if (DGifGetLine(file.get(), line.data(), frame.Width) == GIF_ERROR) refuse(source, file->Error);
    for (size_t x = 0; x < frame_width; ++x)
      put(left + x, top + y, line[x]);
  }
  return image;
}

}  // namespace tidepool::image_decoders
