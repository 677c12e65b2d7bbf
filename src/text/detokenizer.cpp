#include "text/detokenizer.h"

#include <utility>

#include "text/unicode.h"

namespace tidepool {

namespace {

/// The first two bytes of a surrogate: broken already, but the recorded streams of the released tokenizer wait for one
/// byte more, and we give out the same pieces.
bool is_cut_surrogate(std::string_view bytes) {
  return bytes.size() == 2 && bytes[0] == '\xED' && bytes[1] >= '\xA0' && bytes[1] <= '\xBF';
}

}  // namespace

std::string Utf8Stream::push(std::string_view bytes) {
  held_ += bytes;
  // Only the last unit can be truncated, and it begins in the last three bytes.
  size_t certain = held_.size();
  for (size_t back = 1; back <= 3 && back <= held_.size(); ++back) {
    const size_t position = held_.size() - back;
    const bool is_lead = static_cast<uint8_t>(held_[position]) >= 0xC0;
    if (!is_lead) continue;
    const Utf8Unit unit = read_utf8_unit(held_, position);
    const bool is_held =
        unit.kind == Utf8Unit::Kind::kTruncated || is_cut_surrogate(std::string_view(held_).substr(position));
    if (is_held) certain = position;
    break;
  }
  std::string text = replace_invalid_utf8(std::string_view(held_).substr(0, certain));
  held_.erase(0, certain);
  return text;
}

std::string Utf8Stream::flush() {
  return replace_invalid_utf8(std::exchange(held_, {}));
}

std::string Detokenizer::push(int32_t id) {
  if (special_ == SpecialTokens::kSkipped && tokenizer_.is_special(id)) return {};
  return stream_.push(tokenizer_.token_bytes(id));
}

}  // namespace tidepool
