#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "text/tokenizer_tables.h"

namespace tidepool {

/// Reads the text of a `tokenizer.json` of the kind the DeepSeek models have: byte-level BPE, known splits, nothing
/// else that could change ids. `name` stands for the file in messages. Throws Error, naming the file, the key and what
/// is supported: kCorrupt when the text is no JSON or contradicts itself, kUnsupported when it asks for something else,
/// and kResourceExhausted beyond kTokenIdsMax.
[[nodiscard]] std::unique_ptr<const TokenizerTables> parse_tokenizer_file(std::string_view json,
                                                                          const std::string& name);

}  // namespace tidepool
