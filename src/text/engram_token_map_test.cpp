#include "text/engram_token_map.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/tokenizer_released.h"
#include "text/unicode.h"

namespace tidepool {
namespace {

TEST(EngramTokenMap, TextsAreNormalisedAsTheModelWasTrained) {
  EXPECT_EQ(normalise_for_engram("Hello"), "hello");
  EXPECT_EQ(normalise_for_engram(" \t\nCafé  AU\r\nlait "), "cafe au lait");
  EXPECT_EQ(normalise_for_engram("ＡＢ①½ﬃ"), "ab11⁄2ffi");
  EXPECT_EQ(normalise_for_engram("\u01D5"), "u");         // a capital with two marks
  EXPECT_EQ(normalise_for_engram("\u0130"), "i");         // its dot is a mark once it is taken apart
  EXPECT_EQ(normalise_for_engram("ΟΔΟΣ"), "οδοσ");        // no final sigma
  EXPECT_EQ(normalise_for_engram("ß"), "ß");              // lower case, not case folding
  EXPECT_EQ(normalise_for_engram("a\u20DD\u0903"), "a");  // Me and Mc are marks too, not Mn alone
  EXPECT_EQ(normalise_for_engram("한"), "\u1112\u1161\u11AB");
}

TEST(EngramTokenMap, WhiteSpaceAloneStaysOneSpaceOrVanishes) {
  EXPECT_EQ(normalise_for_engram(" \n\t "), " ");
  EXPECT_EQ(normalise_for_engram("\u3000"), " ");  // compatibility makes it a space
  EXPECT_EQ(normalise_for_engram("\u2028"), "");   // this one is no folded space, so it is trimmed away
  EXPECT_EQ(normalise_for_engram("\u0301"), "");
  EXPECT_EQ(normalise_for_engram(""), "");
}

/// The one tensor of a safetensors file (8 bytes header length, JSON header, data) that is called `name`, of type I32.
std::vector<int32_t> read_int32_tensor(const std::string& path, const std::string& name) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  const nlohmann::json tensor = nlohmann::json::parse(bytes.substr(8, header_bytes)).at(name);
  EXPECT_EQ(tensor.at("dtype"), "I32");
  const auto begin = tensor.at("data_offsets").at(0).get<size_t>();
  const auto end = tensor.at("data_offsets").at(1).get<size_t>();
  std::vector<int32_t> out((end - begin) / sizeof(int32_t));
  std::memcpy(out.data(), bytes.data() + 8 + header_bytes + begin, end - begin);
  return out;
}

TEST(EngramTokenMap, TheMapOfTheSmallCheckpointIsTheRecordedOne) {
  const EngramTokenMap map = make_engram_token_map(Tokenizer::load(TIDEPOOL_GOLDEN_DIR "/ckpt/tokenizer.json"));
  EXPECT_EQ(map.compressed_ids,
            read_int32_tensor(TIDEPOOL_GOLDEN_DIR "/cases/engram_this_config.safetensors", "token_map"));
  EXPECT_EQ(map.compressed_vocabulary, 403);  // as its config.json says
}

class ReleasedEngramTokenMap : public ReleasedTokenizerTest {};

TEST_F(ReleasedEngramTokenMap, IsTheRecordedOne) {
  std::ifstream file(TIDEPOOL_GOLDEN_DIR "/tokenizer/engram_compressed_map.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  const EngramTokenMap map = make_engram_token_map(tokenizer());
  EXPECT_EQ(map.compressed_ids.size(), golden.at("v41").at("vocab").get<size_t>());
  EXPECT_EQ(map.compressed_vocabulary, golden.at("v41").at("compressed_vocab").get<int32_t>());
  EXPECT_EQ(sha256_of_ids(map.compressed_ids), golden.at("v41").at("sha256_le_i32").get<std::string>());
}

TEST_F(ReleasedEngramTokenMap, KeysAreTheRecordedOnes) {
  std::ifstream file(TIDEPOOL_GOLDEN_DIR "/tokenizer/engram_compressed_map.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  size_t compared = 0;
  for (const auto& sample : golden.at("samples")) {
    const std::string text = replace_invalid_utf8(tokenizer().token_bytes(sample.at("token").get<int32_t>()));
    const std::string normalised = normalise_for_engram(text);
    if (text.find(kReplacementText) != std::string::npos || normalised.empty()) continue;
    EXPECT_EQ(normalised, sample.at("key").get<std::string>()) << sample.at("token");
    ++compared;
  }
  EXPECT_GT(compared, 300U);
}

}  // namespace
}  // namespace tidepool
