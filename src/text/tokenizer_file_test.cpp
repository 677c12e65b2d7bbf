#include "text/tokenizer_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "text/tokenizer_sample.h"

namespace tidepool {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

json sample() {
  return json::parse(make_sample_tokenizer());
}

/// The message with which a file is refused, its code in front.
std::string refusal_of_text(std::string_view text) {
  try {
    (void)parse_tokenizer_file(text, "dir/tokenizer.json");
  } catch (const Error& error) {
    return std::string(error_code_name(error.code())) + ": " + error.what();
  }
  return "accepted";
}

std::string refusal_of(const json& file) {
  return refusal_of_text(file.dump());
}

/// What is said when the value at `pointer` is `value` instead.
std::string refusal_with(const std::string& pointer, const json& value) {
  json file = sample();
  file[json::json_pointer(pointer)] = value;
  return refusal_of(file);
}

TEST(TokenizerFile, TheSampleIsAccepted) {
  EXPECT_EQ(refusal_of(sample()), "accepted");
}

TEST(TokenizerFile, MergesMayBeListsOfTwo) {
  json file = sample();
  const size_t merge_count = file["model"]["merges"].size();
  for (json& merge : file["model"]["merges"]) {
    const auto text = merge.get<std::string>();
    const size_t space = text.find(' ');
    merge = {text.substr(0, space), text.substr(space + 1)};
  }
  const auto tables = parse_tokenizer_file(file.dump(), "x");
  EXPECT_EQ(merge_count, 8U);
  // Bytes are ids 3 to 258 and the first merge, "h" and "e", made the next.
  const BpeMerges::Merge* merge = tables->merges.find(3 + 'h', 3 + 'e');
  ASSERT_NE(merge, nullptr);
  EXPECT_EQ(merge->merged, 259);
}

TEST(TokenizerFile, WhatMayBeAbsentMayBeAbsent) {
  json file = sample();
  for (const std::string key : {"version", "truncation", "padding", "normalizer", "post_processor"})
    file.erase(key);
  for (const std::string key :
       {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback"}) {
    file["model"].erase(key);
  }
  EXPECT_EQ(refusal_of(file), "accepted");
  file["normalizer"] = nullptr;
  file["post_processor"] = nullptr;
  file["model"]["ignore_merges"] = false;
  EXPECT_EQ(refusal_of(file), "accepted");
  file.erase("added_tokens");
  EXPECT_EQ(refusal_of(file), "accepted");
}

TEST(TokenizerFile, ATruncatedFileIsNoJson) {
  const std::string text = make_sample_tokenizer();
  EXPECT_THAT(refusal_of_text(std::string_view(text).substr(0, text.size() - 1)),
              HasSubstr("corrupt: dir/tokenizer.json: is not valid JSON: "));
  EXPECT_THAT(refusal_of_text(""), HasSubstr("corrupt: dir/tokenizer.json: is not valid JSON: "));
}

TEST(TokenizerFile, EachUnsupportedSettingIsNamedWithWhatIsSupported) {
  const std::string model = "unsupported: dir/tokenizer.json: model.";
  EXPECT_EQ(refusal_with("/model/type", "Unigram"), model + R"(type is "Unigram"; supported: "BPE")");
  EXPECT_EQ(refusal_with("/model/type", 3), model + "type is 3; supported: a string");
  EXPECT_EQ(refusal_with("/model/dropout", 0.1), model + "dropout is 0.1; supported: null");
  EXPECT_EQ(refusal_with("/model/unk_token", "<unk>"), model + R"(unk_token is "<unk>"; supported: null)");
  EXPECT_EQ(refusal_with("/model/continuing_subword_prefix", "##"),
            model + R"(continuing_subword_prefix is "##"; supported: null)");
  EXPECT_EQ(refusal_with("/model/end_of_word_suffix", "</w>"),
            model + R"(end_of_word_suffix is "</w>"; supported: null)");
  EXPECT_EQ(refusal_with("/model/byte_fallback", true), model + "byte_fallback is true; supported: false");
  EXPECT_EQ(refusal_with("/model/fuse_unk", true), model + "fuse_unk is true; supported: false");
  EXPECT_EQ(refusal_with("/model/ignore_merges", true), model + "ignore_merges is true; supported: false");
  EXPECT_EQ(refusal_with("/model/novelty", 1), model + "novelty is 1; supported: a file without this key");
  EXPECT_THAT(refusal_with("/novelty", 1), HasSubstr("novelty is 1; supported: a file without this key"));
  EXPECT_THAT(refusal_with("/truncation", json::object()), HasSubstr("truncation is {}; supported: null"));
  EXPECT_THAT(refusal_with("/padding", json::object()), HasSubstr("padding is {}; supported: null"));
}

TEST(TokenizerFile, ANormalizerThatDoesSomethingIsRefused) {
  const std::string supported = "supported: null or an empty sequence";
  EXPECT_THAT(refusal_with("/normalizer", {{"type", "NFC"}}), HasSubstr("normalizer is"));
  EXPECT_THAT(refusal_with("/normalizer", {{"type", "NFC"}}), HasSubstr(supported));
  EXPECT_THAT(refusal_with("/normalizer/normalizers/0", {{"type", "NFC"}}), HasSubstr(supported));
}

TEST(TokenizerFile, AnUnknownSplitIsShownBesideTheKnownOnes) {
  EXPECT_THAT(refusal_with("/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\p{N}{1,2}"),
              AllOf(HasSubstr("pre_tokenizer.pretokenizers[0].pattern.Regex is \"\\\\p{N}{1,2}\"; supported: "),
                    HasSubstr("\\p{N}{1,3}")));
}

TEST(TokenizerFile, OtherPreTokenizersAreRefused) {
  const std::string steps = "/pre_tokenizer/pretokenizers";
  EXPECT_THAT(refusal_with("/pre_tokenizer/type", "Metaspace"), HasSubstr(R"(supported: "Sequence")"));
  EXPECT_THAT(refusal_with(steps, json::array()), HasSubstr("supported: Split steps and then one ByteLevel step"));
  EXPECT_THAT(refusal_with(steps + "/0/type", "Digits"), HasSubstr(R"(supported: "Split")"));
  EXPECT_THAT(refusal_with(steps + "/0/behavior", "Removed"), HasSubstr(R"(supported: "Isolated")"));
  EXPECT_THAT(refusal_with(steps + "/0/invert", true), HasSubstr("supported: false"));
  EXPECT_THAT(refusal_with(steps + "/0/pattern", {{"String", " "}}), HasSubstr("supported: a file without this key"));
  EXPECT_THAT(refusal_with(steps + "/3/type", "Split"), HasSubstr(R"(supported: "ByteLevel")"));
  EXPECT_THAT(refusal_with(steps + "/3/add_prefix_space", true), HasSubstr("supported: false"));
  EXPECT_THAT(refusal_with(steps + "/3/use_regex", true), HasSubstr("supported: false"));
  EXPECT_THAT(refusal_with(steps, json::array({sample()[json::json_pointer(steps + "/0")]})),
              HasSubstr("\"ByteLevel\""));
}

TEST(TokenizerFile, OtherPostProcessorsAndDecodersAreRefused) {
  EXPECT_THAT(refusal_with("/post_processor/type", "TemplateProcessing"),
              HasSubstr(R"(post_processor.type is "TemplateProcessing"; supported: "ByteLevel")"));
  EXPECT_THAT(refusal_with("/decoder/type", "WordPiece"),
              HasSubstr(R"(decoder.type is "WordPiece"; supported: "ByteLevel")"));
}

TEST(TokenizerFile, MissingPartsAreNamed) {
  for (const std::string key : {"decoder", "pre_tokenizer", "model"}) {
    json file = sample();
    file.erase(key);
    EXPECT_EQ(refusal_of(file), "unsupported: dir/tokenizer.json: there is no " + key + " in the file");
  }
  for (const std::string key : {"vocab", "merges", "type"}) {
    json file = sample();
    file["model"].erase(key);
    EXPECT_EQ(refusal_of(file), "unsupported: dir/tokenizer.json: there is no " + key + " in model");
  }
  EXPECT_THAT(refusal_of_text("[]"), HasSubstr("supported: an object"));
}

TEST(TokenizerFile, IdsAreCheckedAndBounded) {
  EXPECT_EQ(refusal_with("/model/vocab/he", -1),
            "unsupported: dir/tokenizer.json: model.vocab[\"he\"] is -1; supported: an "
            "integer that is not negative");
  EXPECT_THAT(refusal_with("/model/vocab/he", "x"), HasSubstr("supported: an integer that is not negative"));
  EXPECT_EQ(refusal_with("/model/vocab/he", 1 << 20),
            "resource_exhausted: dir/tokenizer.json: model.vocab[\"he\"] is 1048576; ids must be below 1048576");
  EXPECT_THAT(refusal_with("/added_tokens/3/id", 1 << 20),
              HasSubstr("added_tokens[3].id is 1048576; ids must be below"));
}

TEST(TokenizerFile, AVocabularyThatContradictsItselfIsCorrupt) {
  EXPECT_THAT(refusal_with("/model/vocab/he", 260),
              HasSubstr("corrupt: dir/tokenizer.json: model.vocab gives id 260 to "));
  json file = sample();
  file["model"]["vocab"].erase("\u0100");
  EXPECT_EQ(refusal_of(file), "corrupt: dir/tokenizer.json: model.vocab has no token \"\u0100\" for byte 0");
  file = sample();
  file["model"]["vocab"].erase("hell");
  EXPECT_EQ(refusal_of(file),
            "corrupt: dir/tokenizer.json: model.merges[2] needs a token \"hell\", which is not in model.vocab");
  EXPECT_THAT(refusal_with("/model/vocab/", 300), HasSubstr("model.vocab has an empty token, id 300"));
  std::string twice = make_sample_tokenizer();
  twice.insert(twice.find("\"he\":"), "\"he\":300,");
  EXPECT_EQ(refusal_of_text(twice), "corrupt: dir/tokenizer.json: model.vocab has \"he\" twice");
}

TEST(TokenizerFile, MergesMustBeTwoTokens) {
  const std::string supported = "supported: two token texts, in one string with a space between or in a list";
  EXPECT_EQ(refusal_with("/model/merges/1", "ll"),
            "unsupported: dir/tokenizer.json: model.merges[1] is \"ll\"; " + supported);
  for (const json& merge : {json("h e l"), json(5), json{"h"}, json{"h", "e", "l"}, json{"h", 5}, json{5, "h"}}) {
    EXPECT_THAT(refusal_with("/model/merges/1", merge), HasSubstr(supported)) << merge;
  }
  EXPECT_EQ(refusal_with("/model/merges/1", "h e"),
            "corrupt: dir/tokenizer.json: model.merges[1] merges \"h\" and \"e\" a second time");
}

TEST(TokenizerFile, AddedTokensThatWouldMatchOtherwiseAreRefused) {
  for (const std::string key : {"single_word", "lstrip", "rstrip"}) {
    EXPECT_EQ(refusal_with("/added_tokens/1/" + key, true),
              "unsupported: dir/tokenizer.json: added_tokens[1]." + key + " is true; supported: false");
  }
  EXPECT_EQ(refusal_with("/added_tokens/1/normalized", true), "accepted");
  EXPECT_THAT(refusal_with("/added_tokens/4/content", ""),
              HasSubstr("added_tokens[4].content is \"\"; supported: 1 to 256"));
  EXPECT_THAT(refusal_with("/added_tokens/4/content", std::string(257, 'x')), HasSubstr("supported: 1 to 256 bytes"));
  EXPECT_EQ(refusal_with("/added_tokens/4/content", std::string(256, 'x')), "accepted");
}

TEST(TokenizerFile, AddedTokensThatContradictTheVocabularyAreCorrupt) {
  EXPECT_THAT(refusal_with("/added_tokens/4/content", "<think>"), HasSubstr("\"<think>\" is an added token already"));
  EXPECT_THAT(refusal_with("/added_tokens/4/id", 267),
              HasSubstr("added_tokens[4]: id 267 of \"<｜Assistant｜>\" belongs to "
                        "another token already"));
  EXPECT_THAT(refusal_with("/added_tokens/4/id", 259), HasSubstr("belongs to another token already"));  // of "he"
  EXPECT_THAT(refusal_with("/added_tokens/4/content", "hello"),
              HasSubstr("\"hello\" has id 268 here and id 262 in model.vocab"));
  // One token by both ways is fine if both mean the same bytes.
  json file = sample();
  file["added_tokens"].push_back({{"id", 262}, {"content", "hello"}});
  EXPECT_EQ(refusal_of(file), "accepted");
  file["added_tokens"].push_back({{"id", 263}, {"content", "Ġhello"}});
  EXPECT_THAT(refusal_of(file), HasSubstr("id 263 of \"Ġhello\" belongs to another token already"));
}

TEST(TokenizerFile, LongValuesAreCutInMessages) {
  const std::string refusal = refusal_with("/model/unk_token", "中" + std::string(500, 'x'));
  EXPECT_LT(refusal.size(), 300U);
  EXPECT_THAT(refusal, HasSubstr("...; supported: null"));
}

}  // namespace
}  // namespace tidepool
