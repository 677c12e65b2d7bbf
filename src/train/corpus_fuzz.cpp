// Any bytes as a manifest, or as a file of documents, must be read or refused with an Error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "train/corpus.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    (void)tidepool::parse_corpus_manifest(bytes, "fuzz");
  } catch (const tidepool::Error&) {
    // Refused, as most bytes must be.
  }
  try {
    (void)tidepool::parse_corpus_documents(bytes, "fuzz");
  } catch (const tidepool::Error&) {
    // The same.
  }
  return 0;
}
