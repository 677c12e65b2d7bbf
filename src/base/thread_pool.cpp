#include "base/thread_pool.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "base/numa.h"

namespace tidepool {
namespace {

/// About 50 us of pauses: longer than the gap between two kernels of one decode step, far shorter than a time slice, so
/// a pool whose cores are shared gives them back (a pool that only spins was measured at a fifth of one thread's
/// speed).
constexpr int kSpinCount = 2000;

/// Returns as soon as `value` differs from `old`: spins first, then sleeps in the kernel.
void wait_while_equal(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpinCount; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    _mm_pause();
  }
  value.wait(old, std::memory_order_acquire);
}

/// A number in a one-line file of sysfs, or -1.
int read_topology(int cpu, const char* leaf) {
  std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/" + leaf);
  int value = -1;
  return file >> value ? value : -1;
}

/// Physical cores among the processors this process may run on. Without a readable topology every processor counts.
size_t physical_core_count() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  // Fails on machines of more than 1024 processors; the library's own count is then the best there is.
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return std::max(1U, std::thread::hardware_concurrency());
  std::set<std::pair<int, int>> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const int core = read_topology(cpu, "core_id");
    // An unknown core is counted as its own; the -1 package keeps it apart from known ones.
    cores.insert(core < 0 ? std::pair{-1, cpu} : std::pair{read_topology(cpu, "physical_package_id"), core});
  }
  return std::max<size_t>(1, cores.size());
}

}  // namespace

/// A job is open while the caller of run() still takes indices. A worker that wakes in time enters it, one that comes
/// late finds it closed and sleeps on: run() never waits for a thread that has not begun.
struct ThreadPool::Impl {
  static constexpr uint32_t kOpen = 1U << 31;

  size_t thread_count = 1;
  bool is_running = false;        ///< touched by the caller of run() only
  std::atomic<uint64_t> runs{0};  ///< relaxed: orders nothing

  // The job. Written only while `state` is 0, so no worker reads it then.
  const std::function<void(size_t, size_t)>* body = nullptr;
  size_t count = 0;
  std::atomic<size_t> next{0};
  std::mutex error_mutex;
  std::exception_ptr error;

  /// kOpen, plus the number of workers inside. The release store that opens it publishes the job; the acquiring
  /// compare-exchange that enters reads it; leaving releases the results to the caller's acquiring wait.
  std::atomic<uint32_t> state{0};
  /// Counts jobs (and the end); what idle workers wait on.
  std::atomic<uint32_t> signal{0};
  std::atomic<bool> is_stopping{false};
  std::vector<std::jthread> threads;

  void take_indices(size_t worker) noexcept {
    while (true) {
      // Relaxed: the index alone is claimed here; data was published by `state`.
      const size_t index = next.fetch_add(1, std::memory_order_relaxed);
      if (index >= count) return;
      try {
        (*body)(index, worker);
      } catch (...) {
        const std::lock_guard lock(error_mutex);
        if (!error) error = std::current_exception();
        next.store(count, std::memory_order_relaxed);
      }
    }
  }

  bool try_enter() {
    uint32_t seen = state.load(std::memory_order_relaxed);
    while ((seen & kOpen) != 0) {
      if (state.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire, std::memory_order_relaxed))
        return true;
    }
    return false;
  }

  void leave() {
    if (state.fetch_sub(1, std::memory_order_release) == 1) state.notify_one();
  }

  void work(size_t worker) {
    uint32_t seen = 0;
    while (true) {
      wait_while_equal(signal, seen);
      seen = signal.load(std::memory_order_acquire);
      if (is_stopping.load(std::memory_order_relaxed)) return;
      if (!try_enter()) continue;
      take_indices(worker);
      leave();
    }
  }

  void wake_workers() {
    signal.fetch_add(1, std::memory_order_release);
    signal.notify_all();
  }

  void stop() {
    is_stopping.store(true, std::memory_order_relaxed);
    wake_workers();
    threads.clear();  // joins
  }

  void close_and_wait() {
    uint32_t inside = state.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
    while (inside != 0) {
      wait_while_equal(state, inside);
      inside = state.load(std::memory_order_acquire);
    }
  }
};

ThreadPool::ThreadPool(size_t thread_count) : impl_(std::make_unique<Impl>()) {
  impl_->thread_count = thread_count == 0 ? physical_core_count() : thread_count;
  impl_->threads.reserve(impl_->thread_count - 1);
  const std::vector<CpuList> nodes = memory_nodes();
  try {
    for (size_t worker = 1; worker < impl_->thread_count; ++worker) {
      CpuList home;  // empty: anywhere
      if (nodes.size() > 1) home = nodes[node_of_worker(worker, impl_->thread_count, nodes.size())];
      impl_->threads.emplace_back([impl = impl_.get(), worker, home = std::move(home)] {
        if (!home.empty()) keep_on(home);
        impl->work(worker);
      });
    }
  } catch (const std::system_error& error) {
    const size_t started = impl_->threads.size() + 1;
    impl_->stop();  // or those that did start would be waited for in vain
    throw Error(ErrorCode::kResourceExhausted, "only " + std::to_string(started) + " of " +
                                                   std::to_string(impl_->thread_count) + " threads could be started (" +
                                                   error.what() + "); ask for fewer with --threads");
  }
}

ThreadPool::~ThreadPool() {
  impl_->stop();
}

size_t ThreadPool::thread_count() const {
  return impl_->thread_count;
}

uint64_t ThreadPool::runs() const {
  return impl_->runs.load(std::memory_order_relaxed);
}

void ThreadPool::run(size_t count, const std::function<void(size_t, size_t)>& body) {
  Impl& impl = *impl_;
  TIDEPOOL_CHECK(!impl.is_running, "ThreadPool::run was called from inside a job or from a second thread");
  if (count == 0) return;
  impl.is_running = true;
  impl.runs.fetch_add(1, std::memory_order_relaxed);
  impl.body = &body;
  impl.count = count;
  impl.next.store(0, std::memory_order_relaxed);
  const bool is_shared = count > 1 && !impl.threads.empty();
  if (is_shared) {
    impl.state.store(Impl::kOpen, std::memory_order_release);
    impl.wake_workers();
  }
  impl.take_indices(0);
  if (is_shared) impl.close_and_wait();
  impl.is_running = false;
  if (impl.error) std::rethrow_exception(std::exchange(impl.error, nullptr));
}

}  // namespace tidepool
