// Any pattern: it is refused with an Error, or its automaton takes a text that it accepts along every path to the end.
// Input: one byte that seeds the choices, the pattern.
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "text/grammar_regex.h"
#include "text/unicode.h"

namespace {

using tidepool::CharDfa;

void follow(const CharDfa& automaton, uint8_t seed) {
  constexpr size_t kCharsMax = 200;
  std::minstd_rand random(seed + 1U);
  std::string text;
  uint32_t at = 0;
  for (size_t i = 0; i < kCharsMax; ++i) {
    const CharDfa::State& state = automaton.states()[at];
    TIDEPOOL_CHECK(automaton.accepts(text) == state.is_accepting, "another state than that of the text");
    if (state.edges.empty()) {
      TIDEPOOL_CHECK(state.is_accepting || automaton.is_empty(), "a dead end");
      return;
    }
    const CharDfa::Edge& edge = state.edges[random() % state.edges.size()];
    const bool is_surrogate = edge.first >= 0xD800 && edge.first <= 0xDFFF;
    if (is_surrogate) return;
    tidepool::append_utf8(edge.first, text);
    at = edge.target;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kSizeMax = 512;
  if (size < 1 || size > kSizeMax) return 0;
  try {
    const CharDfa automaton = CharDfa::from_pattern({reinterpret_cast<const char*>(data) + 1, size - 1});
    follow(automaton, data[0]);
    (void)automaton.intersect(CharDfa::from_length(1, 20)).is_empty();
  } catch (const tidepool::Error& error) {
    TIDEPOOL_CHECK(error.code() == tidepool::ErrorCode::kInvalidArgument, error.what());
  }
  return 0;
}
