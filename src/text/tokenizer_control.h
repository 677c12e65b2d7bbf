#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "text/tokenizer.h"

namespace tidepool {

/// The ids of the tokens that have a meaning for the program, looked up by text: no id is fixed in code.
struct ControlTokens {
  int32_t begin_of_sentence = 0;           ///< `<｜begin▁of▁sentence｜>`, first in every prompt
  int32_t end_of_sentence = 0;             ///< `<｜end▁of▁sentence｜>`, the only stop token
  std::optional<int32_t> pad;              ///< `<｜▁pad▁｜>`
  std::optional<int32_t> system;           ///< `<｜System｜>`
  std::optional<int32_t> user;             ///< `<｜User｜>`
  std::optional<int32_t> assistant;        ///< `<｜Assistant｜>`
  std::optional<int32_t> latest_reminder;  ///< `<｜latest_reminder｜>`
  std::optional<int32_t> think_begin;      ///< `<think>`
  std::optional<int32_t> think_end;        ///< `</think>`
  std::optional<int32_t> dsml;             ///< `｜DSML｜`, the marker inside tags of tool calls
  std::optional<int32_t> image;            ///< `<｜deepseek_image｜>` or `<｜image｜>`
  std::optional<int32_t> action;           ///< `<｜action｜>`; this and the next five open short auxiliary tasks
  std::optional<int32_t> query;            ///< `<｜query｜>`
  std::optional<int32_t> authority;        ///< `<｜authority｜>`
  std::optional<int32_t> domain;           ///< `<｜domain｜>`
  std::optional<int32_t> title;            ///< `<｜title｜>`
  std::optional<int32_t> read_url;         ///< `<｜read_url｜>`
  std::optional<int32_t> fim_begin;        ///< `<｜fim▁begin｜>`; fill in the middle
  std::optional<int32_t> fim_hole;         ///< `<｜fim▁hole｜>`
  std::optional<int32_t> fim_end;          ///< `<｜fim▁end｜>`
};

/// Those that the tokenizer has as added tokens. Enough to run a model on ids, as with the small test checkpoints.
/// Throws Error(kUnsupported) when the begin or the end of a sentence is missing.
[[nodiscard]] ControlTokens find_control_tokens(const Tokenizer& tokenizer);

/// The same for serving: all fields are set afterwards. Throws Error(kUnsupported) that names every missing token and
/// says so when it is the tokenizer of another model, and Error(kCorrupt) when an id of a control token is not below
/// `embedding_rows`.
[[nodiscard]] ControlTokens require_control_tokens(const Tokenizer& tokenizer, size_t embedding_rows);

}  // namespace tidepool
