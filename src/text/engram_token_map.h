#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace tidepool {

/// The smaller vocabulary on which the Engram n-gram hash works: tokens whose texts differ only in case, accents, width
/// and white space share an id.
struct EngramTokenMap {
  std::vector<int32_t> compressed_ids;  ///< [vocabulary] by token id
  int32_t compressed_vocabulary = 0;    ///< how many there are; they count up from 0 without gaps
};

/// Goes through the ids in order; a token gets the number of its key, and a new key the next number. The key is the
/// token as tokenizer.json writes it if its text contains U+FFFD (as for bytes that are no UTF-8), otherwise
/// normalise_for_engram of its text, or the text itself if that is empty.
[[nodiscard]] EngramTokenMap make_engram_token_map(const Tokenizer& tokenizer);

/// NFKC, then NFD, then: combining marks (\p{M}) deleted, lower case by code point without context, every run of space,
/// tab, CR and LF turned into one space; then white space removed at both ends, unless just one space is left. `text`
/// is valid UTF-8.
[[nodiscard]] std::string normalise_for_engram(std::string_view text);

}  // namespace tidepool
