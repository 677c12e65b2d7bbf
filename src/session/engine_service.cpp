#include "session/engine_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "session/engine_service_output.h"
#include "session/engine_service_prompt.h"
#include "session/grammar_constraint.h"
#include "session/image_features.h"
#include "session/image_fetch.h"
#include "session/kept_turns.h"
#include "session/script.h"
#include "session/stop_finder.h"
#include "text/detokenizer.h"
#include "text/dsml.h"

namespace tidepool {
namespace {

/// Between the scheduler and the listener of one request. The scheduler's thread has it until the ticket is gone.
class ServiceJob final : public SequenceListener {
 public:
  /// What it borrows outlives it.
  struct Surroundings {
    KeptTurns& kept;
    std::atomic<uint64_t>& repeating_outputs;
    ServiceListener& listener;
  };
  ServiceJob(ServiceOutputPlan plan, size_t choices, std::string salt, const Surroundings& around)
      : plan_(std::move(plan)),
        salt_(std::move(salt)),
        kept_(around.kept),
        repeating_outputs_(around.repeating_outputs),
        listener_(around.listener),
        is_over_(choices),
        is_repeating_(choices) {
    outputs_.reserve(choices);
    for (size_t choice = 0; choice < choices; ++choice)
      outputs_.emplace_back(plan_);
  }

  void on_start(const CacheReport& cache) override { listener_.on_start(cache); }
  void on_prompt(int64_t tokens_done, int64_t tokens_total) override { listener_.on_prompt(tokens_done, tokens_total); }

  Verdict on_token(size_t choice, const SampledToken& token, std::optional<FinishReason> finish) override {
    ServiceOutput& output = outputs_[choice];
    const std::vector<CompletionEvent> events = output.feed(token.id, finish);
    listener_.on_output(choice, {&token, 1}, events);
    note_repetition(choice);
    return output.is_done() ? Verdict::kEnough : Verdict::kGoOn;
  }

  void on_choice_end(size_t choice, const ChoiceEnd& end) override {
    ServiceOutput& output = outputs_[choice];
    const std::vector<CompletionEvent> events = output.finish();
    if (!events.empty()) listener_.on_output(choice, {}, events);
    keep(choice);
    listener_.on_finish(choice, output.result(end));
  }

  void on_end(const std::optional<Error>& error) override { listener_.on_end(error); }

  /// The client left: the choices under way may have shown it enough to be sent back. After the last call.
  void keep_unfinished() {
    for (size_t choice = 0; choice < outputs_.size(); ++choice) {
      if (is_over_[choice]) continue;
      (void)outputs_[choice].finish();
      keep(choice);
    }
  }

 private:
  /// Once for each choice.
  void note_repetition(size_t choice) {
    const int64_t tokens = outputs_[choice].repeated_tokens();
    if (tokens == 0 || is_repeating_[choice]) return;
    is_repeating_[choice] = true;
    repeating_outputs_.fetch_add(1, std::memory_order_relaxed);
    if (plan_.repetition_limit > 0) {
      log_warning("an output repeats itself: {} tokens of it so far; it ends at {} (--repetition-limit)", tokens,
                  plan_.repetition_limit);
    } else {
      log_warning("an output repeats itself: {} tokens of it so far; only its own limit ends it", tokens);
    }
  }

  void keep(size_t choice) {
    is_over_[choice] = true;
    if (std::optional<ServiceOutput::Kept> kept = outputs_[choice].kept_turn())
      kept_.keep(salt_, kept->text, std::move(kept->turn));
  }

  const ServiceOutputPlan plan_;
  const std::string salt_;
  KeptTurns& kept_;
  std::atomic<uint64_t>& repeating_outputs_;
  ServiceListener& listener_;
  std::vector<ServiceOutput> outputs_;
  std::vector<bool> is_over_;
  std::vector<bool> is_repeating_;
};

/// Everything that belongs to one submitted request.
class ServiceTicket final : public Service::Ticket {
 public:
  ServiceTicket(std::unique_ptr<ServiceJob> job, std::unique_ptr<Scheduler::Ticket> ticket)
      : job_(std::move(job)), ticket_(std::move(ticket)) {}
  ServiceTicket(const ServiceTicket&) = delete;
  ServiceTicket& operator=(const ServiceTicket&) = delete;
  void cancel() override { ticket_->cancel(); }
  ~ServiceTicket() override {
    ticket_.reset();  // from here on nobody else touches the job
    job_->keep_unfinished();
  }

 private:
  std::unique_ptr<ServiceJob> job_;
  std::unique_ptr<Scheduler::Ticket> ticket_;
};

std::shared_ptr<const ImageFetcher> make_fetcher(const std::vector<std::string>& hosts) {
  if (hosts.empty()) return nullptr;
  ImageFetchOptions options;
  options.hosts = hosts;
  return std::make_shared<const ImageFetcher>(std::move(options));
}

/// How long pictures of others take, roughly.
constexpr int kPictureRetrySeconds = 5;

Busy busy(const Refusal& refusal) {
  Busy result;
  result.retry_after_s = refusal.retry_after_s;
  switch (refusal.reason) {
    case Refusal::Reason::kQueueFull: result.reason = Busy::Reason::kQueueFull; break;
    case Refusal::Reason::kNoMemory: result.reason = Busy::Reason::kNoMemory; break;
    case Refusal::Reason::kDraining: result.reason = Busy::Reason::kDraining; break;
  }
  return result;
}

class EngineService final : public Service {
 public:
  EngineService(std::shared_ptr<const LoadedModel> model, EngineServiceOptions options)
      : model_(std::move(model)),
        kept_(options.kept_turn_bytes),
        repetition_limit_(options.repetition_limit),
        image_limits_{.file = {},
                      .memory = std::make_shared<PictureMemory>(options.picture_bytes),
                      .fetcher = make_fetcher(options.media_hosts)},
        features_(std::make_shared<ImageFeatureCache>(model_->model(), model_->runtime())) {
    if (model_->has_tokenizer()) grammars_.emplace(model_->tokenizer(), model_->stop_ids());
    if (!options.script.empty()) {
      script_ = Script::load(options.script, model_->tokenizer(), static_cast<int32_t>(model_->config().eos_token_id));
    }
    SchedulerOptions scheduler = std::move(options.scheduler);
    if (options.kv) {
      kv_bytes_ = options.kv->ram_bytes;
      store_ = options.kv->store;
      fit_context(scheduler.max_model_len);
      cache_.emplace(model_->model().kv_layout(), *options.kv);
    }
    scheduler_.emplace(Scheduler::Engine{model_->model(), model_->runtime(), cache_ ? &*cache_ : nullptr},
                       std::move(scheduler));
  }

  [[nodiscard]] PreparedRequest prepare(ServiceRequest request) const override {
    check(request);
    ServicePrompt prompt = encode_prompt_of(request);
    const auto length = static_cast<int64_t>(prompt.ids.size());
    if (length >= max_model_len())
      throw Error(ErrorCode::kResourceExhausted, no_room_message(model_->config(), length, max_model_len()));
    require_memory(request, length);
    std::shared_ptr<const CompiledGrammar> grammar = grammar_of(request, prompt.output_start);
    return {std::move(request),  std::move(prompt.ids), std::move(prompt.images),
            prompt.output_start, prompt.has_tools,      std::move(grammar)};
  }

  [[nodiscard]] std::vector<int32_t> encode(const ServiceRequest& request) const override {
    ServiceRequest copy = request;  // pictures are taken out of it
    return encode_prompt_of(copy).ids;
  }

  [[nodiscard]] Submitted submit(PreparedRequest prepared, ServiceListener& listener) override {
    const ServiceRequest& request = prepared.request;
    SequenceRequest sequence;
    sequence.generation = generation_options(request);
    if (script_) {
      sequence.generation.forced = script_->next(last_text(*model_, request));  // recorded outputs are held to nothing
    } else if (prepared.grammar) {
      for (size_t choice = 0; choice < request.choice_count; ++choice)
        sequence.constraints.push_back(std::make_unique<GrammarConstraint>(prepared.grammar));
    }
    sequence.prompt = input_tokens(prepared.prompt_ids, prepared.images.spans);
    sequence.images = prepared.images.spans;
    if (!prepared.images.spans.empty())
      sequence.image_rows = std::make_shared<PromptImageRows>(features_, prepared.images);
    sequence.choice_count = request.choice_count;
    sequence.cache_salt = request.cache_salt;
    sequence.wants_exact_cache = request.wants_exact_cache;
    sequence.priority = request.priority;
    sequence.deadline = request.deadline;
    auto job = std::make_unique<ServiceJob>(output_plan(prepared), request.choice_count, request.cache_salt,
                                            ServiceJob::Surroundings{kept_, repeating_outputs_, listener});
    Scheduler::Submitted submitted = scheduler_->submit(std::move(sequence), *job);
    if (const auto* refusal = std::get_if<Refusal>(&submitted)) return busy(*refusal);
    return std::make_unique<ServiceTicket>(std::move(job),
                                           std::get<std::unique_ptr<Scheduler::Ticket>>(std::move(submitted)));
  }

  void drain() override { scheduler_->drain(); }

  [[nodiscard]] ServiceStatus status() const override {
    const Scheduler::Status now = scheduler_->status();
    ServiceStatus status;
    status.running = now.running;
    status.waiting = now.waiting;
    status.is_draining = now.is_draining;
    status.progress = now.progress;
    status.repeating_outputs = repeating_outputs_.load(std::memory_order_relaxed);
    if (cache_ && kv_bytes_ > 0) {
      const KvCache::Stats stats = cache_->stats();
      const auto used = static_cast<double>(stats.ram_bytes + stats.reserved_bytes);
      status.kv_page_bytes = stats.ram_bytes;
      status.kv_reserved_bytes = stats.reserved_bytes;
      status.snapshot_bytes = stats.snapshot_bytes;
      status.evicted_pages = stats.evicted_pages;
      status.kv_used_share = std::min(used / static_cast<double>(kv_bytes_), 1.0);
    }
    if (store_) status.store = store_->stats();
    return status;
  }

  [[nodiscard]] std::string detokenize(std::span<const int32_t> ids) const override {
    Detokenizer detokenizer(model_->tokenizer());
    std::string text;
    for (const int32_t id : ids)
      text += detokenizer.push(id);
    return text + detokenizer.flush();
  }
  [[nodiscard]] const LoadedModel& model() const override { return *model_; }
  [[nodiscard]] int64_t max_model_len() const override { return scheduler_->options().max_model_len; }
  [[nodiscard]] std::string script_name() const override { return script_ ? script_->name() : std::string(); }

 private:
  [[nodiscard]] int64_t kv_tokens_max() const {
    return static_cast<int64_t>(kv_bytes_ / model_->model().kv_layout()->block_bytes) * kBlockTokens;
  }

  /// A context that memory cannot hold would be promised in vain.
  void fit_context(int64_t& max_model_len) const {
    if (kv_tokens_max() == 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("--kv-ram, {} bytes, holds no context at all: {} tokens take {} bytes; raise it",
                              kv_bytes_, kBlockTokens, model_->model().kv_layout()->block_bytes));
    }
    const int64_t model_max = model_->config().max_position_embeddings;
    if (max_model_len == 0) {
      max_model_len = std::min(model_max, kv_tokens_max());
      if (max_model_len < model_max) {
        log_info("the context is limited to {} of the model's {} tokens, what --kv-ram holds", max_model_len,
                 model_max);
      }
    }
    if (max_model_len <= kv_tokens_max()) return;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--max-model-len is {} tokens, but --kv-ram, {} bytes, holds the KV of {} only; lower the "
                            "one or raise the other",
                            max_model_len, kv_bytes_, kv_tokens_max()));
  }

  /// What the prompt does not tell.
  void check(const ServiceRequest& request) const {
    (void)StopFinder(request.stops);
    check_generation_options(model_->config(), generation_options(request));
    const size_t choices_max = scheduler_->options().max_num_seqs;
    if (request.choice_count < 1 || request.choice_count > choices_max) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("n: is {}; it must be from 1 to {}, the choices under way at once (--max-num-seqs)",
                              request.choice_count, choices_max));
    }
  }

  /// All choices of a request must be able to live at once.
  void require_memory(const ServiceRequest& request, int64_t prompt_length) const {
    if (!cache_ || request.choice_count == 1) return;
    const int64_t room = max_model_len() - prompt_length;
    const int64_t output = std::min(request.max_tokens.value_or(room), room);
    const auto further = static_cast<int64_t>(request.choice_count - 1) * (output + kBlockTokens);
    if (prompt_length + output + further <= kv_tokens_max()) return;
    throw Error(ErrorCode::kResourceExhausted,
                fmt::format("n: {} choices of up to {} tokens need more memory than --kv-ram gives; ask for fewer "
                            "choices, or set max_tokens lower",
                            request.choice_count, output));
  }

  [[nodiscard]] ServicePrompt encode_prompt_of(ServiceRequest& request) const {
    if (auto* chat = std::get_if<ChatRequest>(&request.prompt)) {
      try {
        return encode_service_prompt(*model_, *chat, kept_, request.cache_salt, image_limits_);
      } catch (const PicturesBusy& full) {
        throw ServiceBusy({Busy::Reason::kNoMemory, kPictureRetrySeconds}, full.what());
      }
    }
    return encode_service_prompt(*model_, std::get<RawPrompt>(request.prompt));
  }

  /// What the output is held to. Throws Error(kInvalidArgument) for what cannot be kept together with it.
  [[nodiscard]] std::shared_ptr<const CompiledGrammar> grammar_of(const ServiceRequest& request,
                                                                  OutputStart start) const {
    const auto* chat = std::get_if<ChatRequest>(&request.prompt);
    if (chat == nullptr || !grammars_) return nullptr;
    std::shared_ptr<const CompiledGrammar> grammar =
        grammars_->grammar_for(*chat, start, request.allows_parallel_calls);
    if (grammar && (request.ignores_eos || request.min_tokens > 0)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: an output that is held to a schema or to calls ends where these end; leave it out",
                              request.ignores_eos ? "ignore_eos" : "min_tokens"));
    }
    return grammar;
  }

  [[nodiscard]] GenerationOptions generation_options(const ServiceRequest& request) const {
    GenerationOptions options;
    options.sampling = request.sampling;
    options.sampling.top_logprobs.reset();
    if (request.wants_logprobs) options.sampling.top_logprobs = request.sampling.top_logprobs.value_or(0);
    options.stop_ids = request.stop_ids;
    if (!request.ignores_eos) std::ranges::copy(model_->stop_ids(), std::back_inserter(options.stop_ids));
    options.max_tokens = request.max_tokens;
    options.min_tokens = request.min_tokens;
    return options;
  }

  [[nodiscard]] ServiceOutputPlan output_plan(const PreparedRequest& prepared) const {
    const ServiceRequest& request = prepared.request;
    ServiceOutputPlan plan;
    plan.tokenizer = model_->has_tokenizer() ? &model_->tokenizer() : nullptr;
    plan.stop_ids = request.stop_ids;
    plan.includes_stop_text = request.includes_stop_text;
    plan.allows_parallel_calls = request.allows_parallel_calls;
    plan.repetition_limit = request.ignores_eos ? 0 : repetition_limit_;
    plan.format.stops = request.stops;
    if (std::holds_alternative<RawPrompt>(request.prompt)) {
      plan.format.kind = plan.tokenizer != nullptr ? OutputFormat::Kind::kRaw : OutputFormat::Kind::kIds;
      plan.format.shows_special_tokens = request.shows_special_tokens;
      return plan;
    }
    plan.format.kind = OutputFormat::Kind::kChat;
    plan.format.start = prepared.output_start;
    plan.format.has_tools = prepared.has_tools;
    plan.reasoning_end_id = plan.tokenizer->find_added_token(dsml::kThinkEnd);
    std::span<const int32_t> prompt = prepared.prompt_ids;
    if (prepared.output_start == OutputStart::kCalls) {
      plan.forced_opening = forced_opening(*plan.tokenizer);
      prompt = prompt.first(prompt.size() - std::min(prompt.size(), plan.forced_opening.size()));
    }
    plan.prompt_fingerprint = prompt_fingerprint(prompt);
    return plan;
  }

  std::shared_ptr<const LoadedModel> model_;
  mutable KeptTurns kept_;
  const int64_t repetition_limit_;
  std::atomic<uint64_t> repeating_outputs_ = 0;  ///< relaxed: a counter that orders nothing else
  const RequestImageLimits image_limits_;
  std::shared_ptr<ImageFeatureCache> features_;
  std::unique_ptr<Script> script_;
  mutable std::optional<GrammarLibrary> grammars_;
  size_t kv_bytes_ = 0;
  std::shared_ptr<BlockStore> store_;  ///< of the cache; may be null
  std::optional<KvCache> cache_;
  std::optional<Scheduler> scheduler_;  ///< goes first: its thread uses all the rest
};

}  // namespace

std::unique_ptr<Service> make_engine_service(std::shared_ptr<const LoadedModel> model, EngineServiceOptions options) {
  return std::make_unique<EngineService>(std::move(model), std::move(options));
}

}  // namespace tidepool
