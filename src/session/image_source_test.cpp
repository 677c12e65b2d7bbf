#include "session/image_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace tidepool {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr uint64_t kMax = 1000;

std::string refusal(const std::function<void()>& call, ErrorCode code = ErrorCode::kInvalidArgument) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

TEST(Base64, GivesTheVectorsOfTheRfc) {
  for (const auto& [bytes, text] : std::vector<std::pair<std::string, std::string>>{{"", ""},
                                                                                    {"f", "Zg=="},
                                                                                    {"fo", "Zm8="},
                                                                                    {"foo", "Zm9v"},
                                                                                    {"foob", "Zm9vYg=="},
                                                                                    {"fooba", "Zm9vYmE="},
                                                                                    {"foobar", "Zm9vYmFy"}}) {
    EXPECT_EQ(encode_base64(std::as_bytes(std::span(bytes))), text);
    EXPECT_EQ(decode_base64(text, "data", kMax), bytes);
  }
}

TEST(Base64, EveryByteComesBack) {
  std::string bytes;
  for (int i = 0; i < 511; ++i)
    bytes.push_back(static_cast<char>(i * 7));
  EXPECT_EQ(decode_base64(encode_base64(std::as_bytes(std::span(bytes))), "data", kMax), bytes);
}

TEST(Base64, IsStrict) {
  for (const char* text : {"Zg=", "Zg", "Z", "====", "Zg==Zg==", "Z===", "Zm9v\n", "Zm 9v", "Zm9_", "Zm-v", "=m9v",
                           "Zm9v\r\n\r\n", "Zh==", "Zm9="}) {
    EXPECT_THAT(refusal([&] { (void)decode_base64(text, "messages[0].content[1]", kMax); }),
                StartsWith("messages[0].content[1]: "))
        << text;
  }
}

TEST(Base64, IsBoundedBeforeMemoryIsTaken) {
  const std::string text(4000, 'A');
  EXPECT_THAT(refusal([&] { (void)decode_base64(text, "image", 2999); }, ErrorCode::kResourceExhausted),
              HasSubstr("the limit is 2999"));
  EXPECT_EQ(decode_base64(text, "image", 3000).size(), 3000U);
}

Json record(const std::string& json) {
  return parse_json(json);
}

TEST(ImageRecord, TakesDataUrlsAndSources) {
  for (const char* json :
       {R"({"type": "image", "url": "data:image/png;base64,Zm9v"})", R"({"type": "image", "url": "DATA:;BASE64,Zm9v"})",
        R"({"type": "image", "url": "data:image/svg+xml;charset=utf-8;base64,Zm9v"})",
        R"({"type": "image", "data": "Zm9v"})",
        R"({"type": "image", "source": {"type": "base64", "media_type": "x", "data": "Zm9v"}})",
        R"({"type": "image", "source": {"type": "url", "url": "data:image/gif;base64,Zm9v"}})"}) {
    EXPECT_EQ(image_record_bytes(record(json), "image", kMax), "foo") << json;
  }
}

TEST(ImageRecord, RefusesEverythingElseWithTheFieldAndTheRemedy) {
  const auto message = [](const std::string& json) {
    std::string text = refusal([&] { (void)image_record_bytes(record(json), "messages[3].content[0]", kMax); });
    EXPECT_THAT(text, StartsWith("messages[3].content[0]"));
    return text;
  };
  EXPECT_THAT(message(R"({"url": "https://example.com/a.png"})"), HasSubstr("links are not followed"));
  EXPECT_THAT(message(R"({"url": "HTTP://example.com/a.png"})"), HasSubstr("links are not followed"));
  EXPECT_THAT(message(R"({"url": "/etc/passwd"})"), HasSubstr("never read"));
  EXPECT_THAT(message(R"({"url": "file:///etc/passwd"})"), HasSubstr("never read"));
  EXPECT_THAT(message(R"({"url": "data:image/png;base64"})"), HasSubstr("no comma"));
  EXPECT_THAT(message(R"({"url": "data:image/png,Zm9v"})"), HasSubstr("not in base64"));
  EXPECT_THAT(message(R"({"url": 7})"), HasSubstr("a string"));
  EXPECT_THAT(message(R"({"data": null})"), HasSubstr("a string"));
  EXPECT_THAT(message(R"({"source": {"type": "file", "file_id": "f"}})"), HasSubstr("needs a url"));
  EXPECT_THAT(message(R"({})"), HasSubstr("needs a url"));
}

TEST(ImageBlock, HoldsTheFileAsADataUrlOfItsOwnType) {
  const std::string gif = "GIF89a...";
  const ContentBlock block = make_image_block(std::as_bytes(std::span(gif)));
  EXPECT_EQ(block.kind, ContentBlock::Kind::kImage);
  EXPECT_THAT(block.image.find("url")->as_string(), StartsWith("data:image/gif;base64,"));
  EXPECT_EQ(image_record_bytes(block.image, "image", kMax), gif);
}

}  // namespace
}  // namespace tidepool
