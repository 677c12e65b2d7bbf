// Any arguments give the same text however they are cut, and those that are {"input": "..."} give that string.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "server/custom_input.h"
#include "text/json.h"

namespace {

std::string read_cut(std::string_view arguments, size_t cut) {
  tidepool::responses::CustomInputReader reader;
  std::string text = reader.feed(arguments.substr(0, cut));
  text += reader.feed(arguments.substr(cut));
  return text + reader.finish();
}

void check_value(const std::string& arguments, const std::string& text) {
  try {
    const tidepool::Json value = tidepool::parse_json(arguments);
    if (!value.is_object() || value.as_object().size() != 1) return;
    const tidepool::Json* input = value.find("input");
    if (input != nullptr && input->is_string())
      TIDEPOOL_CHECK(text == input->as_string(), "another text than the JSON has");
  } catch (const tidepool::Error&) {
    // No JSON: the text is whatever came.
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string arguments(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string text = read_cut(arguments, 0);
  TIDEPOOL_CHECK(read_cut(arguments, data[0] % size) == text, "the cut shows");
  check_value(arguments, text);
  return 0;
}
