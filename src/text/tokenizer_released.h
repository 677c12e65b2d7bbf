#pragma once

#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace tidepool {

/// Base of the tests that need the tokenizer of the released model, which tests/fetch_tokenizer.sh puts in place. They
/// fail without it, unless TIDEPOOL_NO_NPM=1 says that it is out of reach.
class ReleasedTokenizerTest : public testing::Test {
 protected:
  static std::filesystem::path path() { return TIDEPOOL_SOURCE_DIR "/.cache/tokenizer_v41.json"; }

  void SetUp() override {
    if (std::filesystem::exists(path())) return;
    const char* is_out_of_reach = std::getenv("TIDEPOOL_NO_NPM");
    if (is_out_of_reach && std::string_view(is_out_of_reach) == "1") {
      GTEST_SKIP()
          << "TIDEPOOL_NO_NPM is set, so the released tokenizer was not fetched and nothing is compared with it";
    }
    FAIL() << path() << " is not there. Run tests/fetch_tokenizer.sh, or set TIDEPOOL_NO_NPM=1 to leave this test out.";
  }

  static const Tokenizer& tokenizer() {
    static const Tokenizer released = Tokenizer::load(path());
    return released;
  }
};

/// SHA-256, in hexadecimal, of ids as little-endian 32-bit integers.
inline std::string sha256_of_ids(const std::vector<int32_t>& ids) {
  std::string bytes;
  for (const int32_t id : ids) {
    for (const int shift : {0, 8, 16, 24})
      bytes += static_cast<char>(id >> shift & 255);
  }
  std::array<uint8_t, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), digest.data());
  std::string hex;
  for (const uint8_t byte : digest) {
    for (const int nibble : {byte >> 4, byte & 15})
      hex += "0123456789abcdef"[nibble];
  }
  return hex;
}

}  // namespace tidepool
