// Any bytes as a GIF picture (decoder_fuzz.h). Seeds: pictures of every kind of GIF, which the tests read too.
#include "image/decoder_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tidepool::image_decoders::check_decoder(tidepool::image_decoders::decode_gif, data, size);
  return 0;
}
