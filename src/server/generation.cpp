#include "server/generation.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "server/json_writer.h"
#include "session/prompt_cache_json.h"

namespace tidepool {
namespace {

std::string_view metric_finish(const ServiceFinish& finish) {
  switch (finish.reason) {
    case FinishReason::kStopToken:
    case FinishReason::kStopText: return "stop";
    case FinishReason::kMaxTokens:
    case FinishReason::kContextFull: return "length";
    case FinishReason::kCancelled: return "abort";
  }
  return "error";
}

}  // namespace

/// Something the service said of one prompt, on its way to the connection's thread.
struct Generation::Happening {
  enum class Kind : uint8_t { kStart, kOutput, kFinish, kEnd } kind = Kind::kEnd;
  size_t prompt = 0;
  size_t choice = 0;  ///< of the prompt's
  Time time = std::chrono::steady_clock::now();
  CacheReport cache;                     ///< kStart
  std::vector<SampledToken> tokens;      ///< kOutput
  std::vector<CompletionEvent> events;   ///< kOutput
  std::optional<ServiceFinish> outcome;  ///< kFinish
  std::optional<Error> error;            ///< kEnd
};

/// Hears of one prompt, on the engine's thread.
struct Generation::Prompt final : public ServiceListener {
  Prompt(Generation& answers, size_t number) : owner(answers), index(number) {}

  void on_start(const CacheReport& report) override {
    Happening happening = make(Happening::Kind::kStart, 0);
    happening.cache = report;
    owner.receive(std::move(happening));
  }
  void on_prompt(int64_t /*tokens_done*/, int64_t /*tokens_total*/) override {}
  void on_output(size_t choice, std::span<const SampledToken> tokens,
                 std::span<const CompletionEvent> events) override {
    Happening happening = make(Happening::Kind::kOutput, choice);
    happening.tokens.assign(tokens.begin(), tokens.end());
    happening.events.assign(events.begin(), events.end());
    owner.receive(std::move(happening));
  }
  void on_finish(size_t choice, const ServiceFinish& finish) override {
    Happening happening = make(Happening::Kind::kFinish, choice);
    happening.outcome = finish;
    owner.receive(std::move(happening));
  }
  void on_end(const std::optional<Error>& error) override {
    Happening happening = make(Happening::Kind::kEnd, 0);
    happening.error = error;
    owner.receive(std::move(happening));
  }

  [[nodiscard]] Happening make(Happening::Kind kind, size_t choice) const {
    Happening happening;
    happening.kind = kind;
    happening.prompt = index;
    happening.choice = choice;
    return happening;
  }

  Generation& owner;
  size_t index;
  PreparedRequest prepared;
  int64_t max_tokens = 0;           ///< 0: none was asked for
  std::vector<int32_t> prompt_ids;  ///< until it is known where a kept context differs
  CacheReport cache;
  std::vector<int64_t> generated;         ///< by choice
  std::vector<std::optional<Time>> last;  ///< by choice: its last tokens came
  std::unique_ptr<Service::Ticket> ticket;
};

Generation::Generation(Parts parts) : parts_(std::move(parts)) {
  times_.arrival = parts_.arrival;
}

Generation::~Generation() = default;

void Generation::run(Parts parts) {
  const auto self = std::make_shared<Generation>(std::move(parts));
  std::vector<ServiceRequest>& requests = self->parts_.call.requests;
  for (size_t i = 0; i < requests.size(); ++i) {
    auto prompt = std::make_unique<Prompt>(*self, i);
    prompt->generated.resize(requests[i].choice_count);
    prompt->last.resize(requests[i].choice_count);
    prompt->max_tokens = requests[i].max_tokens.value_or(0);
    prompt->prepared = self->parts_.service.prepare(std::move(requests[i]));
    prompt->prompt_ids = prompt->prepared.prompt_ids;
    self->prompts_.push_back(std::move(prompt));
  }
  self->submit();
}

void Generation::submit() {
  for (const std::unique_ptr<Prompt>& prompt : prompts_) {
    Service::Submitted submitted = parts_.service.submit(std::move(prompt->prepared), *prompt);
    if (const Busy* busy = std::get_if<Busy>(&submitted)) {
      for (const std::unique_ptr<Prompt>& taken : prompts_)
        taken->ticket.reset();
      return refuse(busy_error(*busy));
    }
    prompt->ticket = std::move(std::get<std::unique_ptr<Service::Ticket>>(submitted));
  }
  parts_.exchange->post([self = shared_from_this()] { self->attach(); });
}

// What follows, but receive(), runs on the connection's thread.

void Generation::receive(Happening happening) {
  std::shared_ptr<Generation> alive = weak_from_this().lock();
  if (!alive) return;  // the server is being taken down, and its tickets with it
  HttpExchange& exchange = *parts_.exchange;
  exchange.post([self = std::move(alive), what = std::move(happening)]() mutable {
    if (self->is_over_) return;
    if (!self->is_attached_) return self->early_.push_back(std::move(what));
    self->handle(what);
  });
}

void Generation::attach() {
  is_attached_ = true;
  // The exchange keeps the generation alive from here on, until the answer is complete or the client gone.
  parts_.exchange->on_gone([self = shared_from_this()] { self->leave(); });
  if (is_over_) return;
  if (parts_.call.is_stream) {
    HttpStream stream;
    stream.headers = parts_.headers;
    stream.keep_alive = parts_.call.keep_alive;
    parts_.exchange->open_stream(std::move(stream));
  }
  std::vector<Happening> early = std::move(early_);
  for (Happening& happening : early) {
    if (!is_over_) handle(happening);
  }
}

void Generation::handle(Happening& happening) {
  Prompt& prompt = *prompts_[happening.prompt];
  switch (happening.kind) {
    case Happening::Kind::kStart: return handle_start(happening);
    case Happening::Kind::kOutput: return handle_output(happening);
    case Happening::Kind::kFinish: {
      const size_t choice = happening.prompt * prompt.generated.size() + happening.choice;
      count_usage(happening.outcome->usage);
      repeated_tokens_ = std::max(repeated_tokens_, happening.outcome->repeated_tokens);
      parts_.call.writer->finish(choice, *happening.outcome, out_);
      RequestOutcome outcome;
      outcome.times = times_;
      outcome.end = happening.time;
      outcome.finish = metric_finish(*happening.outcome);
      outcome.prompt_tokens = prompt.cache.prompt_tokens;
      outcome.generation_tokens = happening.outcome->usage.completion_tokens;
      outcome.max_tokens = prompt.max_tokens;
      outcome.choices = static_cast<int64_t>(prompt.generated.size());
      parts_.metrics.count_request(outcome);
      return send();
    }
    case Happening::Kind::kEnd: return handle_end(happening);
  }
}

void Generation::handle_start(Happening& happening) {
  Prompt& prompt = *prompts_[happening.prompt];
  if (!times_.start) times_.start = happening.time;
  prompt.cache = happening.cache;
  parts_.metrics.count_prompt(happening.cache);
  PromptStart start;
  start.prompt = happening.prompt;
  start.cache = happening.cache;
  start.prompt_cache = prompt_cache_json(happening.cache, prompt.prompt_ids, parts_.service.model());
  prompt.prompt_ids = {};
  parts_.call.writer->start(start, out_);
  send();
}

void Generation::handle_output(const Happening& happening) {
  Prompt& prompt = *prompts_[happening.prompt];
  if (!happening.tokens.empty()) {
    std::optional<Time>& last = prompt.last[happening.choice];
    const auto count = static_cast<int64_t>(happening.tokens.size());
    parts_.metrics.count_tokens(count, last ? std::optional(happening.time - *last) : std::nullopt);
    prompt.generated[happening.choice] += count;
    last = happening.time;
    if (!times_.first_token) times_.first_token = happening.time;
    times_.last_token = happening.time;
  }
  const size_t choice = happening.prompt * prompt.generated.size() + happening.choice;
  parts_.call.writer->output(choice, happening.tokens, happening.events, out_);
  send();
}

void Generation::handle_end(const Happening& happening) {
  if (happening.error) return fail(failed_error(*happening.error));
  if (++ended_prompts_ < prompts_.size()) return;
  parts_.call.writer->end(out_);
  complete();
}

void Generation::send() {
  if (!parts_.call.is_stream || out_.empty()) return;
  const std::string piece = std::exchange(out_, {});
  parts_.exchange->write(piece);
}

void Generation::complete() {
  is_over_ = true;
  note_outcome();
  if (parts_.call.is_stream) {
    send();
    parts_.exchange->finish();
  } else {
    HttpAnswer answer;
    answer.headers = parts_.headers;
    answer.body = std::move(out_);
    parts_.exchange->respond(std::move(answer));
  }
  drop_tickets();
}

void Generation::fail(const ApiError& error) {
  RequestOutcome outcome;
  outcome.times = times_;
  outcome.end = std::chrono::steady_clock::now();
  outcome.finish = error.status == 504 ? "abort" : "error";
  parts_.metrics.count_request(outcome);
  is_over_ = true;
  note_outcome();
  if (parts_.call.is_stream && parts_.exchange->has_begun()) {
    parts_.call.writer->fail(error, out_);
    send();
    parts_.exchange->finish();
  } else {
    refuse(error);
  }
  drop_tickets();
}

/// Any thread.
void Generation::refuse(const ApiError& error) {
  HttpAnswer answer = error_answer(error, parts_.call.error_dialect, parts_.request_id);
  answer.headers.insert(answer.headers.end(), parts_.headers.begin(), parts_.headers.end());
  parts_.exchange->respond(std::move(answer));
}

void Generation::count_usage(const ChoiceUsage& usage) {
  parts_.metrics.count_drafts(usage.drafts);
  drafts_.add(usage.drafts);
}

/// For the access log: figures, and nothing of any text.
void Generation::note_outcome() const {
  int64_t prompt_tokens = 0;
  int64_t hit_tokens = 0;
  int64_t replayed_tokens = 0;
  int64_t generated_tokens = 0;
  for (const std::unique_ptr<Prompt>& prompt : prompts_) {
    prompt_tokens += prompt->cache.prompt_tokens;
    hit_tokens += prompt->cache.hit_tokens;
    replayed_tokens += prompt->cache.replayed_tokens;
    for (const int64_t tokens : prompt->generated)
      generated_tokens += tokens;
  }
  const CacheReport& first = prompts_.front()->cache;
  std::string text;
  JsonWriter json(text);
  json.begin_object().field("prompt_tokens", prompt_tokens).field("completion_tokens", generated_tokens);
  if (times_.start) {
    json.key("cache").begin_object().field("tier", cache_tier_name(first.tier)).field("hit", hit_tokens);
    json.field("replayed", replayed_tokens).field("end", match_end_name(first.end)).end_object();
  }
  json.key("drafts").begin_object().field("accepted", drafts_.accepted_total());
  json.field("rejected", drafts_.rejected_total()).end_object();
  if (repeated_tokens_ > 0) json.field("repeated_tokens", repeated_tokens_);
  json.end_object();
  parts_.exchange->note(std::move(text));
}

/// The client is gone.
void Generation::leave() {
  if (std::exchange(is_over_, true)) return;
  RequestOutcome outcome;
  outcome.times = times_;
  outcome.end = std::chrono::steady_clock::now();
  outcome.finish = "abort";
  for (const std::unique_ptr<Prompt>& prompt : prompts_) {
    outcome.prompt_tokens += prompt->cache.prompt_tokens;
    for (const int64_t tokens : prompt->generated)
      outcome.generation_tokens += tokens;
  }
  parts_.metrics.count_request(outcome);
  note_outcome();
  drop_tickets();
}

/// At once the engine is told to stop, however busy the background is. The tickets die there: a death may have to wait
/// for the engine's thread, and this thread serves others.
void Generation::drop_tickets() {
  for (const std::unique_ptr<Prompt>& prompt : prompts_)
    if (prompt->ticket) prompt->ticket->cancel();
  parts_.exchange->background([self = shared_from_this()] {
    for (const std::unique_ptr<Prompt>& prompt : self->prompts_)
      prompt->ticket.reset();
  });
}

}  // namespace tidepool
