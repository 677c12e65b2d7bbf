// Input: eight bytes of data size (little-endian), then a header. Also round-trips what is accepted.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "formats/safetensors.h"

namespace {

using tidepool::SafetensorsFile;
using Metadata = std::vector<std::pair<std::string, std::string>>;

void check_entries(const std::vector<SafetensorsFile::Entry>& entries, uint64_t data_bytes) {
  uint64_t sum = 0;
  for (const SafetensorsFile::Entry& entry : entries) {
    TIDEPOOL_CHECK(entry.begin <= data_bytes && entry.bytes <= data_bytes - entry.begin, "an entry outside the data");
    TIDEPOOL_CHECK(tidepool::tensor_bytes(entry.dtype, entry.shape) == entry.bytes, "an entry of another size");
    sum += entry.bytes;
  }
  TIDEPOOL_CHECK(sum == data_bytes, "the entries do not cover the data");
}

/// What was accepted can be written, and reads back the same.
void check_round_trip(const std::vector<SafetensorsFile::Entry>& entries, const Metadata& metadata,
                      uint64_t data_bytes) {
  std::vector<tidepool::TensorToWrite> tensors;
  for (const SafetensorsFile::Entry& entry : entries) {
    // Written by name here, wider elements could come to lie unaligned.
    if (tidepool::dtype_bytes(entry.dtype) != 1) return;
    tensors.push_back({entry.name, entry.dtype, entry.shape, {}});
  }
  const std::string written = tidepool::make_safetensors_header(tensors, metadata);
  Metadata metadata_again;
  const auto again =
      tidepool::parse_safetensors_header(std::string_view(written).substr(8), data_bytes, "again", &metadata_again);
  TIDEPOOL_CHECK(again.size() == entries.size() && metadata_again == metadata, "another file after a round trip");
  for (size_t i = 0; i < entries.size(); ++i) {
    TIDEPOOL_CHECK(again[i].name == entries[i].name && again[i].shape == entries[i].shape, "another tensor");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (size < 8) return 0;
  uint64_t data_bytes = 0;
  for (size_t i = 0; i < 8; ++i)
    data_bytes |= uint64_t{data[i]} << (8 * i);
  try {
    Metadata metadata;
    const auto entries = tidepool::parse_safetensors_header(input.substr(8), data_bytes, "fuzz", &metadata);
    check_entries(entries, data_bytes);
    check_round_trip(entries, metadata, data_bytes);
  } catch (const tidepool::Error& error) {
    TIDEPOOL_CHECK(std::string_view(error.what()).starts_with("fuzz: "), "an error that does not name the file");
  }
  return 0;
}
