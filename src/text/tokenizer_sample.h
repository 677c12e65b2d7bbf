#pragma once

#include <array>
#include <string>
#include <string_view>

#include "text/bpe.h"
#include "text/pretokenizer.h"

namespace tidepool {

/// A JSON string of valid UTF-8 without control characters.
inline std::string sample_json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\r' || c == '\n') {
      out += c == '\r' ? "\\r" : "\\n";
    } else {
      out += c;
    }
  }
  return out + "\"";
}

/// The text of a small `tokenizer.json` with the released splits, for tests and the fuzz program: ids 0-2 are in the
/// vocabulary and added, ids 3-258 are the bytes in order, then come the tokens of a few merges, then five added
/// tokens, of which some begin alike.
inline std::string make_sample_tokenizer() {
  constexpr std::array<std::array<std::string_view, 2>, 8> kMerges = {
      {{"h", "e"}, {"l", "l"}, {"he", "ll"}, {"hell", "o"}, {"Ġ", "hello"}, {"1", "2"}, {"ä", "¸"}, {"Ġ", "Ġ"}}};
  constexpr std::array<std::string_view, 3> kFirst = {"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>",
                                                      "<｜▁pad▁｜>"};
  constexpr std::array<std::string_view, 5> kLast = {"<｜User｜>", "<｜Assistant｜>", "<think>", "</think>",
                                                     "<think>ing"};

  std::string vocabulary;
  std::string merges;
  std::string added;
  int id = 0;
  const auto add_token = [&](std::string_view text) {
    vocabulary += (id == 0 ? "" : ",") + sample_json_string(text) + ":" + std::to_string(id);
    ++id;
  };
  const auto add_added_token = [&](std::string_view text, int added_id) {
    added += (added.empty() ? "" : ",") + ("{\"id\":" + std::to_string(added_id)) +
             ",\"content\":" + sample_json_string(text) + ",\"special\":" + (added_id < 3 ? "true" : "false") + "}";
  };
  for (const std::string_view text : kFirst) {
    add_added_token(text, id);
    add_token(text);
  }
  for (int byte = 0; byte < 256; ++byte)
    add_token(byte_letters(std::string(1, static_cast<char>(byte))));
  for (const auto& [left, right] : kMerges) {
    add_token(std::string(left) + std::string(right));
    merges += (merges.empty() ? "" : ",") + sample_json_string(std::string(left) + " " + std::string(right));
  }
  for (const std::string_view text : kLast)
    add_added_token(text, id++);

  std::string splits;
  for (const SplitRule rule : {SplitRule::kDigits, SplitRule::kCjk, SplitRule::kWords}) {
    splits += R"({"type":"Split","pattern":{"Regex":)" +
              sample_json_string(split_rule_regexes().at(static_cast<size_t>(rule))) +
              R"(},"behavior":"Isolated","invert":false},)";
  }
  return R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)" + added +
         R"(],"normalizer":{"type":"Sequence","normalizers":[]},"pre_tokenizer":{"type":"Sequence","pretokenizers":[)" +
         splits +
         R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]},)"
         R"("post_processor":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":false,"use_regex":true},)"
         R"("decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},)"
         R"("model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,)"
         R"("end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"vocab":{)" +
         vocabulary + R"(},"merges":[)" + merges + "]}}";
}

}  // namespace tidepool
