#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace tidepool {

/// Recorded outputs that stand in for the model's choices: the model runs, but which token comes next is read from a
/// file. For tests of whatever stands above the engine, with every detail of the real thing but the words.
///
/// The file holds one JSON object a line (empty lines and lines that begin with '#' do not count):
///   {"text": "Let me see.</think>It is 15 degrees.", "match": "weather"}
/// `text` is what the model writes behind the prompt, so in thinking mode it begins inside the reasoning; control
/// tokens of the chat format in it are meant as such. `ids` (a list) instead of `text` gives the tokens themselves. The
/// end of the turn follows by itself; with `"repeat": true` the text is written again and again instead, until
/// something else ends the output. A line with `match` answers every prompt whose last message (of a raw prompt: whose
/// text) contains it, the first such line wins; the other lines answer the remaining prompts in turn, over and over.
class Script {
 public:
  /// Throws Error: kNotFound or kIo for the file, kInvalidArgument naming file and line for what it says.
  [[nodiscard]] static std::unique_ptr<Script> load(const std::filesystem::path& file, const Tokenizer& tokenizer,
                                                    int32_t end_id);
  /// The same from text; `name` stands for the file.
  [[nodiscard]] static std::unique_ptr<Script> parse(std::string_view text, std::string name,
                                                     const Tokenizer& tokenizer, int32_t end_id);

  /// The tokens of the output that answers a prompt, to be taken from the start again when they are over. Throws
  /// Error(kNotFound) naming the file when no line fits. Thread-safe.
  [[nodiscard]] std::vector<int32_t> next(std::string_view last_message);

  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  struct Line {
    std::string match;  ///< empty: any prompt, in turn
    std::vector<int32_t> ids;
  };
  explicit Script(std::string name) : name_(std::move(name)) {}

  std::string name_;
  std::vector<Line> matched_;
  std::vector<Line> in_turn_;
  std::atomic<size_t> turn_ = 0;  ///< relaxed: nothing else is ordered by it
};

}  // namespace tidepool
