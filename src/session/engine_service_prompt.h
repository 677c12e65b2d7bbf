#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "session/image_prompt.h"
#include "session/kept_turns.h"
#include "session/service.h"
#include "text/chat_request.h"
#include "text/tokenizer.h"

namespace tidepool {

/// The prompt of a request as ids, and what has to be known of it to read the output.
struct ServicePrompt {
  std::vector<int32_t> ids;
  PromptImages images;
  OutputStart output_start = OutputStart::kContent;
  bool has_tools = false;
  std::vector<std::string> missing_control_tokens;  ///< see PromptIds
};

/// The prompt of a chat request. An assistant turn of its history that was kept is put in as the model wrote it, with
/// its reasoning where the template keeps reasoning; all else is encoded from its text. Pictures are taken out of the
/// request. Throws Error(kInvalidArgument) as encode_chat_request and take_images.
[[nodiscard]] ServicePrompt encode_service_prompt(const LoadedModel& model, ChatRequest& request, KeptTurns& kept,
                                                  std::string_view salt, const RequestImageLimits& images);

/// The prompt that stands as it is. `begin_id` is the begin-of-sentence token. Throws Error(kInvalidArgument).
[[nodiscard]] ServicePrompt encode_service_prompt(const LoadedModel& model, const RawPrompt& prompt);

/// The ids with which a prompt opens the calls block when a call is forced.
[[nodiscard]] std::vector<int32_t> forced_opening(const Tokenizer& tokenizer);

/// The text a script's lines are matched with: that of the last message, or of the raw prompt.
[[nodiscard]] std::string last_text(const LoadedModel& model, const ServiceRequest& request);

}  // namespace tidepool
