#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/answer.h"
#include "server/http.h"
#include "server/metrics.h"
#include "session/service.h"

namespace tidepool {

/// A request as a dialect has read it: one or more prompts, and how to answer.
struct ApiCall {
  std::vector<ServiceRequest> requests;  ///< one per prompt, all with the same choice_count
  std::unique_ptr<AnswerWriter> writer;
  bool is_stream = false;
  std::string keep_alive = ": keep-alive\n\n";
  ErrorDialect error_dialect = ErrorDialect::kOpenAi;
};

/// Answers one exchange from the service: hears of the prompts' outputs on the engine's thread, and writes them on the
/// connection's. When the client leaves, its tickets die.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  /// What it is made of; service and metrics must outlive it.
  struct Parts {
    std::shared_ptr<HttpExchange> exchange;
    Service& service;
    Metrics& metrics;
    ApiCall call;
    std::vector<HttpHeader> headers;  ///< of the answer
    std::string request_id;
    std::chrono::steady_clock::time_point arrival;
  };
  explicit Generation(Parts parts);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  /// Queues the prompts; answers at once when the service takes one of them not. For the background: preparing long
  /// prompts takes its time. Throws Error as Service::prepare does.
  static void run(Parts parts);

 private:
  struct Prompt;
  struct Happening;
  using Time = std::chrono::steady_clock::time_point;

  void submit();
  void receive(Happening happening);
  void attach();
  void handle(Happening& happening);
  void handle_start(Happening& happening);
  void handle_output(const Happening& happening);
  void handle_end(const Happening& happening);
  void send();
  void complete();
  void fail(const ApiError& error);
  void refuse(const ApiError& error);
  void leave();
  void count_usage(const ChoiceUsage& usage);
  void note_outcome() const;
  void drop_tickets();

  Parts parts_;
  std::vector<std::unique_ptr<Prompt>> prompts_;
  std::vector<Happening> early_;  ///< what came before attach()
  std::string out_;               ///< to be sent
  size_t ended_prompts_ = 0;
  bool is_attached_ = false;
  bool is_over_ = false;
  RequestTimes times_;
  DraftCounts drafts_;           ///< of the choices that finished
  int64_t repeated_tokens_ = 0;  ///< at their ends; the most of any
};

}  // namespace tidepool
