#include <fmt/format.h>

#include <exception>
#include <utility>

#include "engine/prefill.h"
#include "engine/scheduler_internal.h"

namespace tidepool::scheduling {

Loader::Loader(KvCache& cache, Mailbox& mailbox, size_t threads) : cache_(cache), mailbox_(mailbox) {
  threads_.reserve(threads);
  for (size_t i = 0; i < threads; ++i)
    threads_.emplace_back([this](const std::stop_token& stop) { run(stop); });
}

Loader::~Loader() {
  for (std::jthread& thread : threads_)
    thread.request_stop();
}

void Loader::load(JobPtr job) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(job));
  }
  news_.notify_one();
}

void Loader::run(const std::stop_token& stop) {
  while (true) {
    JobPtr job;
    {
      std::unique_lock lock(mutex_);
      if (!news_.wait(lock, stop, [this] { return !queue_.empty(); })) return;
      job = std::move(queue_.front());
      queue_.pop_front();
    }
    if (job->is_cancelled.load(std::memory_order_relaxed)) continue;
    load_one(*job);
    {
      const std::lock_guard lock(mailbox_.mutex);
      mailbox_.loaded.push_back(std::move(job));
    }
    mailbox_.news.notify_one();
  }
}

void Loader::load_one(Job& job) {
  KvCache::Query query;
  query.text = {job.request.prompt, job.request.images};
  query.salt = job.request.cache_salt;
  set_replay(query, job.request.generation.replay);
  try {
    job.resumed.emplace(cache_.resume(query));
  } catch (const Error& error) {
    job.load_error = error;
  } catch (const std::exception& error) {
    // No memory, or no thread to read with: it may pass, and is no reason to end the server.
    job.load_error = Error(ErrorCode::kResourceExhausted,
                           fmt::format("the prompt could not be looked up in the cache: {}", error.what()));
  }
}

}  // namespace tidepool::scheduling
