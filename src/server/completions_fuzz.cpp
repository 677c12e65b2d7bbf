// Any bytes as a request's body: read and answered, or refused with an Error of the client's.
#include "server/completions.h"
#include "server/request_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tidepool::server_testing::fuzz_request(data, size, tidepool::completions::read_call);
  return 0;
}
