#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace tidepool {

/// A fixed set of threads for arithmetic. The calling thread takes part, so `thread_count` 1 starts none.
/// One job at a time: `run` may be called from one thread only. On a machine of several memory nodes each thread but
/// the caller's is kept on one of them, equal parts of the threads on each; on one node nothing is kept anywhere.
class ThreadPool {
 public:
  /// `thread_count` 0 means one per physical core this process may use.
  explicit ThreadPool(size_t thread_count = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] size_t thread_count() const;
  /// How often run() was called so far: whether something computes can be told from outside. Any thread.
  [[nodiscard]] uint64_t runs() const;

  /// Calls body(index, worker) for every index in [0, count), each once, spread over the threads, and returns when all
  /// are done. `worker` in [0, thread_count) names the thread, for per-thread scratch. Which thread takes which index
  /// is open, so results must not depend on it: write where `index` says, or make the scratch of `worker` invisible in
  /// the result. After an exception no further index is started; the first one thrown is rethrown here once all bodies
  /// have stopped. Waiting spins briefly, then sleeps. A body must not call run() of its own pool.
  void run(size_t count, const std::function<void(size_t index, size_t worker)>& body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool
