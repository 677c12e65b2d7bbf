#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "session/service.h"

/// A service for tests: takes requests, and says of them what the test tells it to say.
namespace tidepool::server_testing {

class FakeService final : public Service {
 public:
  explicit FakeService(std::shared_ptr<const LoadedModel> model) : model_(std::move(model)) {}

  // What the next requests meet.
  std::optional<Error> prepare_error;
  std::optional<Busy> busy;
  std::optional<Busy> prepare_busy;
  // What it says of itself and of choices.
  uint64_t evicted_pages = 0;
  std::optional<BlockStore::Stats> store;
  ChoiceUsage usage;
  std::atomic<uint64_t> progress{0};
  /// Called with each request that is taken, on the thread that submits it. To be set before the first request: a call
  /// may go on behind the answer that it gives.
  std::function<void(size_t request)> at_submit;

  [[nodiscard]] PreparedRequest prepare(ServiceRequest request) const override {
    check_prepare();
    if (prepare_error) throw Error(*prepare_error);
    PreparedRequest prepared;
    prepared.prompt_ids = {0, 1, 2, 3};
    prepared.request = std::move(request);
    return prepared;
  }
  [[nodiscard]] std::vector<int32_t> encode(const ServiceRequest& /*request*/) const override {
    check_prepare();
    return {0, 1, 2};
  }
  [[nodiscard]] Submitted submit(PreparedRequest request, ServiceListener& listener) override {
    size_t index = 0;
    {
      const std::lock_guard lock(mutex_);
      if (busy) return *busy;
      index = requests_.size();
      requests_.push_back({std::move(request), &listener});
      changed_.notify_all();
    }
    auto ticket = std::make_unique<FakeTicket>(*this, index);
    if (at_submit) at_submit(index);
    return ticket;
  }
  void drain() override {
    const std::lock_guard lock(mutex_);
    is_draining_ = true;
  }
  [[nodiscard]] ServiceStatus status() const override {
    const std::lock_guard lock(mutex_);
    ServiceStatus status;
    for (const Request& request : requests_)
      status.running += request.listener != nullptr ? 1 : 0;
    status.is_draining = is_draining_;
    status.evicted_pages = evicted_pages;
    status.store = store;
    status.progress = progress;
    return status;
  }
  [[nodiscard]] std::string detokenize(std::span<const int32_t> ids) const override {
    return model_->tokenizer().decode(ids);
  }
  [[nodiscard]] const LoadedModel& model() const override { return *model_; }
  [[nodiscard]] int64_t max_model_len() const override { return 1024; }
  [[nodiscard]] std::string script_name() const override { return ""; }

  // --- the test's side

  /// Waits until so many requests were taken; the last one's index.
  size_t wait_for_requests(size_t count) {
    std::unique_lock lock(mutex_);
    const bool came = changed_.wait_for(lock, kPatience, [&] { return requests_.size() >= count; });
    TIDEPOOL_CHECK(came, "a request comes");
    return count - 1;
  }
  /// Waits until a request's ticket is gone.
  void wait_for_drop(size_t index) {
    std::unique_lock lock(mutex_);
    const bool went = changed_.wait_for(lock, kPatience, [&] { return requests_[index].listener == nullptr; });
    TIDEPOOL_CHECK(went, "the ticket dies");
  }
  [[nodiscard]] const PreparedRequest& request(size_t index) const {
    const std::lock_guard lock(mutex_);
    return requests_[index].prepared;
  }

  void start(size_t index, int64_t prompt_tokens = 4, int64_t hit_tokens = 0) {
    CacheReport cache;
    cache.prompt_tokens = prompt_tokens;
    cache.hit_tokens = hit_tokens;
    cache.tier = hit_tokens > 0 ? CacheTier::kPages : CacheTier::kNone;
    tell(index, [&](ServiceListener& listener) { listener.on_start(cache); });
  }
  void say(size_t index, CompletionEvent::Kind kind, std::string text, size_t choice = 0) {
    CompletionEvent event;
    event.kind = kind;
    event.text = std::move(text);
    SampledToken token;
    token.id = 5;
    tell(index,
         [&](ServiceListener& listener) { listener.on_output(choice, std::span(&token, 1), std::span(&event, 1)); });
  }
  void finish(size_t index, FinishReason reason = FinishReason::kStopToken, size_t choice = 0) {
    ServiceFinish finish;
    finish.reason = reason;
    finish.usage = usage;
    finish.usage.completion_tokens = 2;
    tell(index, [&](ServiceListener& listener) { listener.on_finish(choice, finish); });
  }
  void end(size_t index, const std::optional<Error>& error = std::nullopt) {
    tell(index, [&](ServiceListener& listener) { listener.on_end(error); });
  }

 private:
  static constexpr std::chrono::minutes kPatience{1};

  struct Request {
    PreparedRequest prepared;
    ServiceListener* listener = nullptr;  ///< null once the ticket is gone
  };
  class FakeTicket final : public Ticket {
   public:
    FakeTicket(FakeService& service, size_t index) : service_(service), index_(index) {}
    ~FakeTicket() override {
      const std::lock_guard lock(service_.mutex_);
      service_.requests_[index_].listener = nullptr;
      service_.changed_.notify_all();
    }
    FakeTicket(const FakeTicket&) = delete;
    FakeTicket& operator=(const FakeTicket&) = delete;
    void cancel() override {}  // nothing computes

   private:
    FakeService& service_;
    size_t index_;
  };

  void check_prepare() const {
    if (prepare_busy) throw ServiceBusy(*prepare_busy, "messages[0].content[0]: no memory for images now");
  }

  template <typename Call>
  void tell(size_t index, const Call& call) {
    const std::lock_guard lock(mutex_);
    if (requests_[index].listener != nullptr) call(*requests_[index].listener);
  }

  std::shared_ptr<const LoadedModel> model_;
  mutable std::mutex mutex_;  ///< guards all below, and orders calls and the death of tickets
  std::condition_variable changed_;
  std::vector<Request> requests_;
  bool is_draining_ = false;
};

}  // namespace tidepool::server_testing
