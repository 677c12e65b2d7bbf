#include "text/tokenizer_control.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace tidepool {
namespace {

struct OptionalToken {
  std::optional<int32_t> ControlTokens::*field;
  std::string_view text;
  std::string_view other_text;  ///< another spelling; empty: none
};

constexpr std::array<OptionalToken, 18> kOptionalTokens = {{
    {&ControlTokens::pad, "<｜▁pad▁｜>", ""},
    {&ControlTokens::system, "<｜System｜>", ""},
    {&ControlTokens::user, "<｜User｜>", ""},
    {&ControlTokens::assistant, "<｜Assistant｜>", ""},
    {&ControlTokens::latest_reminder, "<｜latest_reminder｜>", ""},
    {&ControlTokens::think_begin, "<think>", ""},
    {&ControlTokens::think_end, "</think>", ""},
    {&ControlTokens::dsml, "｜DSML｜", ""},
    {&ControlTokens::image, "<｜deepseek_image｜>", "<｜image｜>"},
    {&ControlTokens::action, "<｜action｜>", ""},
    {&ControlTokens::query, "<｜query｜>", ""},
    {&ControlTokens::authority, "<｜authority｜>", ""},
    {&ControlTokens::domain, "<｜domain｜>", ""},
    {&ControlTokens::title, "<｜title｜>", ""},
    {&ControlTokens::read_url, "<｜read_url｜>", ""},
    {&ControlTokens::fim_begin, "<｜fim▁begin｜>", ""},
    {&ControlTokens::fim_hole, "<｜fim▁hole｜>", ""},
    {&ControlTokens::fim_end, "<｜fim▁end｜>", ""},
}};

int32_t require(const Tokenizer& tokenizer, std::string_view text) {
  if (const std::optional<int32_t> id = tokenizer.find_added_token(text)) return *id;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: there is no added token \"{}\"; this is not the tokenizer of a DeepSeek model",
                          tokenizer.name(), text));
}

void check_row(const Tokenizer& tokenizer, int32_t id, size_t embedding_rows) {
  if (static_cast<size_t>(id) < embedding_rows) return;
  throw Error(
      ErrorCode::kCorrupt,
      fmt::format("{}: token \"{}\" has id {}, but the checkpoint has {} embedding rows; tokenizer and weights do "
                  "not belong together",
                  tokenizer.name(), tokenizer.token_bytes(id), id, embedding_rows));
}

}  // namespace

ControlTokens find_control_tokens(const Tokenizer& tokenizer) {
  ControlTokens tokens;
  tokens.begin_of_sentence = require(tokenizer, "<｜begin▁of▁sentence｜>");
  tokens.end_of_sentence = require(tokenizer, "<｜end▁of▁sentence｜>");
  for (const auto& [field, text, other_text] : kOptionalTokens) {
    tokens.*field = tokenizer.find_added_token(text);
    if (!(tokens.*field) && !other_text.empty()) tokens.*field = tokenizer.find_added_token(other_text);
  }
  return tokens;
}

ControlTokens require_control_tokens(const Tokenizer& tokenizer, size_t embedding_rows) {
  const ControlTokens tokens = find_control_tokens(tokenizer);
  std::vector<std::string_view> missing;
  for (const OptionalToken& token : kOptionalTokens) {
    if (!(tokens.*token.field)) missing.push_back(token.text);
  }
  if (!missing.empty()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: added tokens are missing: {}; this is not the tokenizer of a DeepSeek-V4.1 model",
                            tokenizer.name(), fmt::join(missing, " ")));
  }
  check_row(tokenizer, tokens.begin_of_sentence, embedding_rows);
  check_row(tokenizer, tokens.end_of_sentence, embedding_rows);
  for (const OptionalToken& token : kOptionalTokens)
    check_row(tokenizer, *(tokens.*token.field), embedding_rows);
  return tokens;
}

}  // namespace tidepool
