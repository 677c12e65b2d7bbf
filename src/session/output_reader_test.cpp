#include "session/output_reader.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace tidepool {
namespace {

/// The tiny golden tokenizer: it flags all added tokens special, the markers of the format among them.
class OutputReaderTest : public testing::Test {
 protected:
  Completion read(const OutputFormat& format, const std::vector<int32_t>& ids) {
    OutputReader reader(&tokenizer_, format);
    Completion completion;
    for (const int32_t id : ids)
      completion.add(reader.feed(id));
    completion.add(reader.finish());
    return completion;
  }
  [[nodiscard]] std::vector<int32_t> ids(const std::string& text) const { return tokenizer_.encode(text); }

  Tokenizer tokenizer_ = Tokenizer::load(std::filesystem::path(TIDEPOOL_GOLDEN_DIR) / "ckpt/tokenizer.json");
};

TEST_F(OutputReaderTest, SplitsReasoningFromTheAnswer) {
  OutputFormat format;
  format.start = OutputStart::kReasoning;
  const Completion completion = read(format, ids("why</think>because"));
  EXPECT_EQ(completion.reasoning, "why");
  EXPECT_EQ(completion.content, "because");
}

TEST_F(OutputReaderTest, SpecialTokensDoNotShow) {
  OutputFormat format;
  EXPECT_EQ(read(format, ids("a<｜▁pad▁｜>b<｜User｜>c<｜deepseek_image｜>d")).content, "abcd");
  format.kind = OutputFormat::Kind::kRaw;
  EXPECT_EQ(read(format, ids("a<｜▁pad▁｜>b<｜User｜>c")).content, "abc");
}

TEST_F(OutputReaderTest, RawTextStaysAsItIs) {
  OutputFormat format;
  format.kind = OutputFormat::Kind::kRaw;
  EXPECT_EQ(read(format, ids("\n\n a \n")).content, "\n\n a \n");
}

TEST_F(OutputReaderTest, BytesOfOneCharacterInTwoTokensAreOneCharacter) {
  const std::vector<int32_t> bytes = tokenizer_.encode("\xc3");
  const std::vector<int32_t> rest = tokenizer_.encode("\xa9");
  OutputFormat format;
  format.kind = OutputFormat::Kind::kRaw;
  EXPECT_EQ(read(format, {bytes.front(), rest.front()}).content, "é");
  EXPECT_EQ(read(format, {bytes.front()}).content, "\xef\xbf\xbd");
}

TEST_F(OutputReaderTest, StopStringInTheAnswerEndsIt) {
  OutputFormat format;
  format.start = OutputStart::kReasoning;
  format.stops = {"stop"};
  OutputReader reader(&tokenizer_, format);
  Completion completion;
  for (const int32_t id : ids("do not stop here</think>now stop and no more"))
    if (!reader.is_done()) completion.add(reader.feed(id));
  EXPECT_TRUE(reader.is_done());
  EXPECT_EQ(reader.stop_index(), 0U);
  EXPECT_EQ(completion.reasoning, "do not stop here");
  EXPECT_EQ(completion.content, "now ");
}

TEST_F(OutputReaderTest, IdsAreNotRead) {
  OutputFormat format;
  format.kind = OutputFormat::Kind::kIds;
  OutputReader reader(nullptr, format);
  EXPECT_TRUE(reader.feed(5).empty());
  EXPECT_TRUE(reader.finish().empty());
  EXPECT_FALSE(reader.is_done());
}

}  // namespace
}  // namespace tidepool
