#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/error.h"
#include "server/http.h"
#include "session/service.h"

namespace tidepool {

/// Whose words an answer uses.
enum class ErrorDialect { kOpenAi, kAnthropic };

/// Why a request gets no answer. (docs/api.md, errors)
struct ApiError {
  int status = 500;
  std::string message;
  std::string param;  ///< the field it is about; may be empty
  std::string code;   ///< may be empty
  std::optional<int> retry_after_s;
};

/// An ApiError on its way up.
class ApiRefusal : public std::runtime_error {
 public:
  explicit ApiRefusal(ApiError error) : std::runtime_error(error.message), error_(std::move(error)) {}
  [[nodiscard]] const ApiError& error() const noexcept { return error_; }

 private:
  ApiError error_;
};

[[nodiscard]] ApiError make_error(int status, std::string message, std::string code = "");
/// What a client is told of an error that came before its request was queued. What is not the client's fault is not
/// told in detail: the message could name files.
[[nodiscard]] ApiError refused_error(const Error& error);
/// What a client is told when its request failed under way.
[[nodiscard]] ApiError failed_error(const Error& error);
[[nodiscard]] ApiError busy_error(const Busy& busy);

/// {"message", "type", "param", "code"}
[[nodiscard]] std::string openai_error_object(const ApiError& error);
/// The dialect's body.
[[nodiscard]] std::string error_body(const ApiError& error, ErrorDialect dialect, std::string_view request_id);
/// The dialect's answer: Anthropic's clients know 529 instead of 503.
[[nodiscard]] HttpAnswer error_answer(const ApiError& error, ErrorDialect dialect, std::string_view request_id);

}  // namespace tidepool
