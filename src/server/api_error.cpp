#include "server/api_error.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "server/json_writer.h"
#include "text/unicode.h"

namespace tidepool {
namespace {

constexpr int kOverloadedStatus = 529;

bool is_path_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         c == '[' || c == ']';
}

/// The path of the field at the front of a message, "messages[2].content: ...".
std::string field_of(std::string_view message) {
  const size_t colon = message.find(": ");
  if (colon == std::string_view::npos || colon == 0) return "";
  const std::string_view path = message.substr(0, colon);
  return std::ranges::all_of(path, is_path_letter) ? std::string(path) : "";
}

ApiError server_error(const Error& error) {
  log_error("a request failed: {}: {}", error_code_name(error.code()), error.what());
  ApiError result;
  result.message = "the server met an error of its own; its log says more";
  return result;
}

std::string_view openai_type(const ApiError& error) {
  switch (error.status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 429: return "rate_limit_error";
    default: return error.status < 500 ? "invalid_request_error" : "server_error";
  }
}

std::string_view anthropic_type(const ApiError& error) {
  switch (error.status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    case 504: return "timeout_error";
    default: return error.status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

ApiError make_error(int status, std::string message, std::string code) {
  ApiError error;
  error.status = status;
  error.message = std::move(message);
  error.code = std::move(code);
  return error;
}

ApiError refused_error(const Error& error) {
  ApiError result;
  result.status = 400;
  result.message = error.what();
  switch (error.code()) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported: result.param = field_of(result.message); return result;
    case ErrorCode::kResourceExhausted:
      // A limit of one field, a picture's size say, or that of the whole context.
      result.param = field_of(result.message);
      if (result.param.empty()) result.code = "context_length_exceeded";
      return result;
    case ErrorCode::kNotFound:
    case ErrorCode::kCorrupt:
    case ErrorCode::kIo:
    case ErrorCode::kCancelled:
    case ErrorCode::kNumeric: return server_error(error);
  }
  return server_error(error);
}

ApiError failed_error(const Error& error) {
  ApiError result;
  switch (error.code()) {
    case ErrorCode::kCancelled:
      result.status = 504;
      result.message = "the request's time was over before its answer was complete";
      return result;
    case ErrorCode::kResourceExhausted:
      result.status = 503;
      result.code = "insufficient_system_resource";
      result.message = error.what();
      result.retry_after_s = 1;
      return result;
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported: return refused_error(error);
    case ErrorCode::kNotFound:
    case ErrorCode::kCorrupt:
    case ErrorCode::kIo:
    case ErrorCode::kNumeric: return server_error(error);
  }
  return server_error(error);
}

ApiError busy_error(const Busy& busy) {
  ApiError result;
  result.retry_after_s = std::max(busy.retry_after_s, 1);
  result.status = 503;
  switch (busy.reason) {
    case Busy::Reason::kLoading:
      result.message = "the model is being loaded";
      result.code = "loading";
      return result;
    case Busy::Reason::kQueueFull:
      result.status = 429;
      result.message = "as many requests as may wait are waiting";
      result.code = "queue_full";
      return result;
    case Busy::Reason::kNoMemory:
      result.message = "the memory for contexts is taken by other requests";
      result.code = "insufficient_system_resource";
      return result;
    case Busy::Reason::kDraining:
      result.message = "the server is shutting down";
      result.code = "draining";
      return result;
  }
  return result;
}

std::string openai_error_object(const ApiError& error) {
  std::string out;
  JsonWriter json(out);
  json.begin_object().field("message", replace_invalid_utf8(error.message)).field("type", openai_type(error));
  error.param.empty() ? json.null_field("param") : json.field("param", error.param);
  error.code.empty() ? json.null_field("code") : json.field("code", error.code);
  json.end_object();
  return out;
}

std::string error_body(const ApiError& error, ErrorDialect dialect, std::string_view request_id) {
  std::string out;
  JsonWriter json(out);
  if (dialect == ErrorDialect::kOpenAi) {
    json.begin_object().key("error").raw(openai_error_object(error)).end_object();
    return out;
  }
  json.begin_object().field("type", "error").key("error").begin_object();
  json.field("type", anthropic_type(error)).field("message", replace_invalid_utf8(error.message)).end_object();
  json.field("request_id", replace_invalid_utf8(request_id)).end_object();
  return out;
}

HttpAnswer error_answer(const ApiError& error, ErrorDialect dialect, std::string_view request_id) {
  HttpAnswer answer;
  answer.status = dialect == ErrorDialect::kAnthropic && error.status == 503 ? kOverloadedStatus : error.status;
  answer.body = error_body(error, dialect, request_id);
  if (error.retry_after_s) answer.headers.push_back({"Retry-After", std::to_string(*error.retry_after_s)});
  return answer;
}

}  // namespace tidepool
