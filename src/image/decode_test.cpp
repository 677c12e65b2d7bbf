#include "image/decode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "image/image_test_support.h"

namespace tidepool {
namespace {

using image_test::bytes_of;
using image_test::sample;
using image_test::short_sum;
using testing::HasSubstr;

struct Sample {
  const char* file;
  size_t width;
  size_t height;
  const char* sum;
};

/// What Pillow 9.4 gives for Image.open(file).convert("RGB"). Of 16-bit samples that is the upper byte, but of 16-bit
/// grey alone the lower one, and white for all above.
constexpr Sample kSamples[] = {
    {"alpha.webp", 37, 29, "abe73a6b4b0a29aa"},
    {"alpha_lossless.webp", 37, 29, "d4f3f9d897ed8eca"},
    {"animated.gif", 37, 29, "3d031c39e4d6f00d"},
    {"animated.webp", 37, 29, "4060db5bba3e7dd7"},
    {"bits.png", 37, 29, "6982d84f2ddd7435"},
    {"cmyk.jpg", 37, 29, "bcaf3e9fdee548c7"},
    {"full.jpg", 37, 29, "f02c329326ccacff"},
    {"grey.gif", 37, 29, "e0a30a88955d09a2"},
    {"grey.jpg", 37, 29, "403c2a6905c2627c"},
    {"grey.png", 37, 29, "e0a30a88955d09a2"},
    {"grey16.png", 37, 29, "f648dbbe35176018"},
    {"grey16_interlaced.png", 37, 29, "d90ffc8b5822d2eb"},
    {"grey_alpha.png", 37, 29, "e0a30a88955d09a2"},
    {"interlaced.gif", 37, 29, "3d031c39e4d6f00d"},
    {"interlaced.png", 37, 29, "4060db5bba3e7dd7"},
    {"lossless.webp", 37, 29, "4060db5bba3e7dd7"},
    {"lossy.webp", 37, 29, "2a7d1045f54f5626"},
    {"one.gif", 1, 1, "e1ebf7b33c2f56da"},
    {"one.jpg", 1, 1, "6af5ad6faf9069d1"},
    {"one.png", 1, 1, "e1ebf7b33c2f56da"},
    {"one.webp", 1, 1, "e1ebf7b33c2f56da"},
    {"overflowing.gif", 37, 29, "3d031c39e4d6f00d"},
    {"palette.png", 37, 29, "fbc40c2e3de95592"},
    {"palette2.png", 37, 29, "43b2083e65d20480"},
    {"palette4.png", 37, 29, "804d4ab2cb382979"},
    {"palette_transparent.png", 37, 29, "804d4ab2cb382979"},
    {"part.gif", 47, 36, "885ce209af2a07c1"},
    {"part_transparent.gif", 47, 36, "d727d18f71f46016"},
    {"plain.gif", 37, 29, "3d031c39e4d6f00d"},
    {"progressive.jpg", 37, 29, "540355a894376cc4"},
    {"rgb.jpg", 37, 29, "73c7ff61d08ec881"},
    {"rgb.png", 37, 29, "4060db5bba3e7dd7"},
    {"rgb16.png", 37, 29, "b2e185f84e65df48"},
    {"rgba.png", 37, 29, "d4f3f9d897ed8eca"},
    {"short_palette.gif", 37, 29, "15b81345e6ceae6f"},
    {"subsampled.jpg", 37, 29, "67dd64e06c65f969"},
    {"transparent.gif", 37, 29, "3d031c39e4d6f00d"},
    {"transparent_colour.png", 37, 29, "4060db5bba3e7dd7"},
    {"turned_by_exif.jpg", 37, 29, "540355a894376cc4"},
};

class Samples : public testing::TestWithParam<Sample> {};

TEST_P(Samples, GivePillowsPixels) {
  const RgbImage image = decode_image(bytes_of(sample(GetParam().file)), GetParam().file);
  EXPECT_EQ(image.width, GetParam().width);
  EXPECT_EQ(image.height, GetParam().height);
  EXPECT_EQ(short_sum(image), GetParam().sum);
}

INSTANTIATE_TEST_SUITE_P(Files, Samples, testing::ValuesIn(kSamples), [](const auto& test) {
  std::string name = test.param.file;
  name[name.find('.')] = '_';
  return name;
});

/// The error of decoding `bytes`; fails the test when there is none.
Error refusal(const std::string& bytes, const ImageLimits& limits = {}) {
  try {
    (void)decode_image(bytes_of(bytes), "photo", limits);
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::StartsWith("photo: "));
    return error;
  }
  ADD_FAILURE() << "nothing was refused";
  return Error(ErrorCode::kIo, "");
}

/// A file may be cut behind its pixels (in the trailer): that is the whole picture then, and never a part of one.
void expect_whole_or_refused(const std::string& bytes, const RgbImage& whole, const std::string& what) {
  try {
    EXPECT_TRUE(decode_image(bytes_of(bytes), "photo") == whole) << what << " gave other pixels";
  } catch (const Error& error) {
    EXPECT_TRUE(error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kUnsupported) << error.what();
  }
}

TEST(Decode, AFileCutShortAnywhereIsRefusedOrWhole) {
  for (const Sample& s : kSamples) {
    const std::string bytes = sample(s.file);
    const RgbImage whole = decode_image(bytes_of(bytes), s.file);
    // Every byte of small files, every 7th of larger ones.
    for (size_t length = 0; length < bytes.size(); length += bytes.size() < 500 ? 1 : 7)
      expect_whole_or_refused(bytes.substr(0, length), whole,
                              std::string(s.file) + " cut to " + std::to_string(length));
  }
}

TEST(Decode, AFileCutInTheMiddleSaysSo) {
  for (const char* file : {"rgb.jpg", "progressive.jpg", "cmyk.jpg", "rgb.png", "interlaced.png", "lossy.webp",
                           "lossless.webp", "animated.webp", "plain.gif", "interlaced.gif"}) {
    const std::string bytes = sample(file);
    const Error error = refusal(bytes.substr(0, bytes.size() / 2));
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << file << ": " << error.what();
    EXPECT_THAT(error.what(), HasSubstr("damaged or cut short")) << file;
  }
}

TEST(Decode, AJpegWhoseDataEndBeforeTheirEndMarkerIsNoHalfGreyPicture) {
  std::string bytes = sample("full.jpg");
  bytes.resize(bytes.size() / 2);
  bytes += "\xff\xd9";
  EXPECT_THAT(refusal(bytes).what(), HasSubstr("premature end"));
}

TEST(Decode, DamagedBytesNeverCrash) {
  for (const Sample& s : kSamples) {
    const std::string bytes = sample(s.file);
    for (size_t at = 0; at < bytes.size(); at += 11) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
      try {
        (void)decode_image(bytes_of(damaged), "photo", {.pixels_max = 100'000});
      } catch (const Error&) {
        // Refused; where the damage hides in the pixels, decoding is fine too.
      }
    }
  }
}

TEST(Decode, FormatsAreKnownByContent) {
  EXPECT_EQ(image_format_of(bytes_of(sample("one.jpg"))), ImageFormat::kJpeg);
  EXPECT_EQ(image_format_of(bytes_of(sample("one.png"))), ImageFormat::kPng);
  EXPECT_EQ(image_format_of(bytes_of(sample("one.webp"))), ImageFormat::kWebp);
  EXPECT_EQ(image_format_of(bytes_of(sample("one.gif"))), ImageFormat::kGif);
  EXPECT_EQ(image_format_of(bytes_of("GIF")), std::nullopt);
}

TEST(Decode, OtherFilesAreNamedWithTheRemedy) {
  EXPECT_THAT(refusal("").what(), HasSubstr("no bytes"));
  EXPECT_THAT(refusal("plain text").what(), HasSubstr("convert it to one"));
  EXPECT_THAT(refusal("BM....").what(), HasSubstr("BMP"));
  EXPECT_THAT(refusal("%PDF-1.7").what(), HasSubstr("PDF"));
  EXPECT_THAT(refusal("<svg xmlns=").what(), HasSubstr("SVG"));
  EXPECT_THAT(refusal(std::string("\0\0\0\x18"
                                  "ftypheic",
                                  12))
                  .what(),
              HasSubstr("HEIC"));
  EXPECT_THAT(refusal(std::string("II*\0....", 8)).what(), HasSubstr("TIFF"));
}

TEST(Decode, AFileAboveTheLimitOfBytesIsRefusedUnread) {
  const Error error = refusal(sample("rgb.png"), {.bytes_max = 100});
  EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(error.what(), HasSubstr("the limit is 100"));
}

/// The header of a sample with another size written into it: a bomb, as nothing of that size follows.
std::string with_size(const std::string& file, const std::function<void(std::string&)>& write) {
  std::string bytes = sample(file);
  write(bytes);
  return bytes;
}

void put_little(std::string& bytes, size_t at, uint32_t value, size_t count) {
  for (size_t i = 0; i < count; ++i)
    bytes[at + i] = static_cast<char>(value >> (8 * i));
}

/// CRC-32 of a PNG chunk, bit by bit.
uint32_t crc_of(const std::string& text) {
  uint32_t crc = 0xffffffffU;
  for (const char c : text) {
    crc ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit)
      crc = (crc >> 1) ^ (crc % 2 != 0 ? 0xedb88320U : 0U);
  }
  return ~crc;
}

void put_big(std::string& bytes, size_t at, uint32_t value) {
  for (size_t i = 0; i < 4; ++i)
    bytes[at + i] = static_cast<char>(value >> (24 - 8 * i));
}

std::string png_of_size(uint32_t width, uint32_t height) {
  return with_size("rgb.png", [&](std::string& bytes) {
    put_big(bytes, 16, width);
    put_big(bytes, 20, height);
    put_big(bytes, 29, crc_of(bytes.substr(12, 17)));
  });
}

TEST(Decode, BombsAreRefusedByTheirHeaders) {
  std::vector<std::string> bombs = {png_of_size(60'000, 60'000), png_of_size(100'000, 1), png_of_size(1, 70'000),
                                    png_of_size(0x7fffffff, 0x7fffffff)};
  // SOF0 holds precision, height and width behind its length.
  bombs.push_back(with_size(
      "rgb.jpg", [](std::string& bytes) { bytes.replace(bytes.find("\xff\xc0") + 5, 4, "\xff\x00\xff\x00", 4); }));
  bombs.push_back(with_size("plain.gif", [](std::string& bytes) { put_little(bytes, 6, 0xffffffffU, 4); }));
  // The canvas of VP8X, less one, in 24 bits each.
  bombs.push_back(with_size("animated.webp", [](std::string& bytes) {
    put_little(bytes, 24, 0x3fff, 3);
    put_little(bytes, 27, 0x3fff, 3);
  }));
  for (const std::string& bomb : bombs) {
    const Error error = refusal(bomb);
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("scale it down"));
  }
}

TEST(Decode, SizesOfNothingAreDamage) {
  EXPECT_EQ(refusal(png_of_size(0, 5)).code(), ErrorCode::kCorrupt);
}

TEST(Decode, AJpegOf12BitsIsNamedAsUnsupported) {
  const std::string bytes = with_size("rgb.jpg", [](std::string& text) { text[text.find("\xff\xc0") + 4] = 12; });
  const Error error = refusal(bytes);
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.what(), HasSubstr("precision 12"));
  EXPECT_THAT(error.what(), HasSubstr("8-bit RGB"));
}

}  // namespace
}  // namespace tidepool
