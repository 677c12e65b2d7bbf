#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "session/service.h"
#include "text/json.h"

namespace tidepool {

class JsonWriter;

/// What every part of an answer repeats, and what its making needs of the server.
struct AnswerInfo {
  std::string id;     ///< letters and digits behind the dialect's prefix, "chatcmpl-" say
  std::string model;  ///< as the client asked for it
  int64_t created = 0;
  std::string request_id;
  std::string fingerprint;  ///< names the build, and the script when outputs are replayed
  /// The bytes of tokens. Any thread; must outlive the answer.
  std::function<std::string(std::span<const int32_t>)> decode;
  /// The token that ends reasoning, where the tokenizer has one.
  std::optional<int32_t> think_end;
};

/// One prompt's beginning.
struct PromptStart {
  size_t prompt = 0;  ///< of the request's prompts
  CacheReport cache;
  Json prompt_cache;  ///< the report as answers tell it
};

/// Writes one API's form of an answer, as a stream or as a whole. Every call appends what may be sent now: a whole
/// answer all of it at end(). Choices are counted over all prompts: prompt * n + choice. Lives on one thread.
class AnswerWriter {
 public:
  AnswerWriter() = default;
  AnswerWriter(const AnswerWriter&) = delete;
  AnswerWriter& operator=(const AnswerWriter&) = delete;
  virtual ~AnswerWriter() = default;

  virtual void start(const PromptStart& start, std::string& out) = 0;
  virtual void output(size_t choice, std::span<const SampledToken> tokens, std::span<const CompletionEvent> events,
                      std::string& out) = 0;
  virtual void finish(size_t choice, const ServiceFinish& finish, std::string& out) = 0;
  /// All choices are finished.
  virtual void end(std::string& out) = 0;
  /// The request failed after something was sent. Streams only.
  virtual void fail(const ApiError& error, std::string& out) = 0;
};

/// What a whole request took.
class UsageTally {
 public:
  explicit UsageTally(size_t choice_count) : finishes_(choice_count) {}
  void start(const PromptStart& start);
  void count(size_t tokens) { running_tokens_ += static_cast<int64_t>(tokens); }
  void finish(size_t choice, const ServiceFinish& finish) { finishes_[choice] = finish; }

  [[nodiscard]] int64_t prompt_tokens() const { return prompt_tokens_; }
  [[nodiscard]] int64_t cached_tokens() const { return cached_tokens_; }
  /// Of the finished choices, and what has come so far of the others.
  [[nodiscard]] int64_t completion_tokens() const;
  [[nodiscard]] int64_t reasoning_tokens() const;
  /// Of the finished choices.
  [[nodiscard]] DraftCounts drafts() const;
  [[nodiscard]] const std::optional<PromptStart>& first() const { return first_; }
  [[nodiscard]] const std::optional<ServiceFinish>& finish_of(size_t choice) const { return finishes_[choice]; }

 private:
  int64_t prompt_tokens_ = 0;
  int64_t cached_tokens_ = 0;
  int64_t running_tokens_ = 0;
  std::optional<PromptStart> first_;
  std::vector<std::optional<ServiceFinish>> finishes_;
};

/// "reasoning_tokens", "accepted_prediction_tokens" and "rejected_prediction_tokens", as members: the details that both
/// of OpenAI's APIs have.
void write_output_details(JsonWriter& json, const UsageTally& tally);
/// The OpenAI form of a tally, as a value.
void write_openai_usage(JsonWriter& json, const UsageTally& tally);
/// The member "prompt_cache": where the first prompt's beginning came from. Nothing before it is known.
void write_prompt_cache(JsonWriter& json, const UsageTally& tally);

/// One call of the model, put together.
struct AnswerCall {
  std::string id;
  std::string name;   ///< as written, `space::name` if it has a namespace
  std::string space;  ///< `name` split
  std::string bare_name;
  std::string arguments;
  bool is_complete = false;
};

/// The log-probabilities of a choice's tokens, split where reasoning ends.
struct AnswerLogprobs {
  std::vector<SampledToken> reasoning;
  std::vector<SampledToken> content;
};

/// A list of {"token", "logprob", "bytes", "top_logprobs"}.
void write_token_logprobs(JsonWriter& json, const AnswerInfo& info, const std::vector<SampledToken>& tokens);

/// Decides for each token whether it belongs to the reasoning.
class ReasoningSplit {
 public:
  ReasoningSplit(bool starts_in_reasoning, std::optional<int32_t> think_end)
      : is_reasoning_(starts_in_reasoning), think_end_(think_end) {}
  void add(std::span<const SampledToken> tokens, std::span<const CompletionEvent> events, AnswerLogprobs& out);

 private:
  bool is_reasoning_;
  std::optional<int32_t> think_end_;
};

/// A choice's output, put together.
struct AnswerText {
  std::string reasoning;
  std::string content;
  std::vector<AnswerCall> calls;

  void add(const CompletionEvent& event);
};

/// An id within an answer: the answer's own, and a number.
[[nodiscard]] std::string make_item_id(std::string_view prefix, std::string_view key, size_t index);

/// The finish_reason of the OpenAI dialects.
[[nodiscard]] std::string_view openai_finish_reason(const ServiceFinish& finish);

/// A token's text for people: U+FFFD for bytes that are no character.
[[nodiscard]] std::string shown_token(std::string_view bytes);

}  // namespace tidepool
