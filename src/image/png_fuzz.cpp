// Any bytes as a PNG picture (decoder_fuzz.h). Seeds: pictures of every kind of PNG, which the tests read too.
#include "image/decoder_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tidepool::image_decoders::check_decoder(tidepool::image_decoders::decode_png, data, size);
  return 0;
}

#ifdef TIDEPOOL_FUZZ  // under libFuzzer, as opposed to a run over the seeds
#include <zlib.h>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t size_max);

namespace {

uint32_t read_big_endian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | uint32_t{bytes[3]};
}

void write_big_endian(uint32_t value, uint8_t* bytes) {
  for (int i = 0; i < 4; ++i)
    bytes[i] = static_cast<uint8_t>(value >> (24 - 8 * i));
}

}  // namespace

/// Puts the checksums of all chunks right again, as nearly every change would end at one of them; one in eight is left
/// as it is, so that wrong sums stay tested.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t size_max, unsigned int seed) {
  size = LLVMFuzzerMutate(data, size, size_max);
  if (seed % 8 == 0) return size;
  constexpr size_t kSignature = 8;
  constexpr size_t kAround = 12;  // length, type and checksum of a chunk
  for (size_t at = kSignature; at + kAround <= size;) {
    const size_t length = read_big_endian(data + at);
    if (length > size - at - kAround) break;
    const uLong sum = crc32(crc32(0, Z_NULL, 0), data + at + 4, static_cast<uInt>(4 + length));
    write_big_endian(static_cast<uint32_t>(sum), data + at + 8 + length);
    at += kAround + length;
  }
  return size;
}
#endif
