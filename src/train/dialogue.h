#pragma once

#include <optional>
#include <string>

#include "image/plan.h"
#include "text/chat_request.h"
#include "text/completion_parser.h"
#include "text/tokenizer.h"
#include "train/token_batch.h"

namespace tidepool {

/// A conversation up to the turn that is to be answered, the right answer, and what counts as one.
struct Dialogue {
  enum class Check : uint8_t {
    kExact,   ///< the answer's text, but for white space around it
    kOption,  ///< the first option, command or path that the answer names is `key`
    kCalls,   ///< the same calls with the same arguments, and no text that is not asked for
  };
  ChatRequest request;
  /// In chat mode without reasoning.
  ChatMessage answer;
  Check check = Check::kExact;
  std::string key;    ///< kOption only
  std::string group;  ///< what kind of item of its task it is, for tables; may be empty
};

/// What turns dialogues into the tokens of a model.
struct SampleEncoding {
  SampleEncoding(const Tokenizer& tokenizer_in,  // NOLINT(*-explicit-*): most models read text alone
                 std::optional<ImagePlanConfig> images_in = std::nullopt)
      : tokenizer(tokenizer_in), images(images_in) {}

  const Tokenizer& tokenizer;             ///< outlives it
  std::optional<ImagePlanConfig> images;  ///< how pictures enter the model; nothing for one that cannot see
};

/// The tokens of the whole conversation in the released format, the answer and its end of sentence at the end, and its
/// pictures, each decoded and prepared as that of a request. What the assistant wrote is to be learnt: the answer, and
/// the earlier turns as far as the prompt shows them as they were written (in thinking mode without tools their
/// reasoning is left out, so these turns are given). Throws Error(kInvalidArgument) for a picture when the model cannot
/// see.
[[nodiscard]] Sample make_sample(const SampleEncoding& encoding, const Dialogue& dialogue);

/// The tokens that the model is asked to go on from: make_sample's, up to the answer.
[[nodiscard]] std::vector<int32_t> make_prompt(const SampleEncoding& encoding, const Dialogue& dialogue);

/// The text that the model should write, its end of sentence left out.
[[nodiscard]] std::string answer_text(const Dialogue& dialogue);

/// What is to be said of an output.
struct AnswerScore {
  bool is_right = false;
  /// kCalls: there is a call, every call is closed, and the arguments are a JSON object that has the schema's required
  /// members, of its types, and no others. Otherwise: there is text, and no call.
  bool is_well_formed = false;
};

/// Compares an output with the dialogue's answer. `has_ended`: the model ended its turn by itself; an answer that was
/// cut off is neither right nor well-formed.
[[nodiscard]] AnswerScore score_answer(const Dialogue& dialogue, const Completion& output, bool has_ended);

/// A message of one text.
[[nodiscard]] ChatMessage text_message(ChatRole role, std::string text);

}  // namespace tidepool
