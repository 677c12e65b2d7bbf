#include "kv/store_reader.h"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <numeric>
#include <system_error>
#include <tuple>

#include "base/error.h"
#include "base/log.h"

namespace tidepool::store {
namespace {

/// Read at a time: below it devices lose throughput, above it threads wait for one another.
constexpr uint64_t kRunBytesMax = uint64_t{1} << 20;
/// A gap between two wanted records that is read along rather than skipped.
constexpr uint64_t kGapBytesMax = uint64_t{16} << 10;
/// Direct reads begin and end at multiples of this.
constexpr uint64_t kDirectAlignment = 4096;

/// Requests [begin, end) of the sorted order, one read.
struct Run {
  size_t begin = 0;
  size_t end = 0;
  uint64_t from = 0;
  uint64_t to = 0;
};

class DirectBuffer {
 public:
  std::span<std::byte> at_least(uint64_t bytes) {
    if (bytes > size_) {
      memory_.reset(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kDirectAlignment})));
      size_ = bytes;
    }
    return {memory_.get(), bytes};
  }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { ::operator delete (bytes, std::align_val_t{kDirectAlignment}); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  uint64_t size_ = 0;
};

std::vector<Run> make_runs(std::span<const RecordRequest> requests, std::span<const size_t> order) {
  std::vector<Run> runs;
  for (size_t i = 0; i < order.size(); ++i) {
    const Place& place = requests[order[i]].place;
    const uint64_t end = place.offset + place.bytes;
    if (!runs.empty() && requests[order[runs.back().begin]].place.segment == place.segment) {
      Run& last = runs.back();
      if (place.offset <= last.to + kGapBytesMax && std::max(end, last.to) - last.from <= kRunBytesMax) {
        last.end = i + 1;
        last.to = std::max(end, last.to);
        continue;
      }
    }
    runs.push_back({i, i + 1, place.offset, end});
  }
  return runs;
}

/// One thread's work.
class RunReader {
 public:
  RunReader(const ReaderOptions& options, std::span<const RecordRequest> requests, std::span<const size_t> order,
            std::atomic<bool>& is_logged)
      : options_(options), requests_(requests), order_(order), is_logged_(is_logged) {}

  template <typename Take>
  void read(const Run& run, const Take& take) {
    ReadOutcome failure = ReadOutcome::kDamaged;
    std::span<const std::byte> bytes;  // of the file from run.from on; short where it ends
    try {
      open(requests_[order_[run.begin]].place.segment);
      bytes = read_range(run.from, run.to);
    } catch (const Error& error) {
      failure = error.code() == ErrorCode::kNotFound ? ReadOutcome::kGone : ReadOutcome::kFailed;
      if (failure == ReadOutcome::kFailed) log_failure(error);
    } catch (const std::exception& error) {  // no memory
      failure = ReadOutcome::kFailed;
      log_failure(error);
    }
    for (size_t i = run.begin; i < run.end; ++i)
      take_one(run, i, bytes, failure, take);
  }

 private:
  /// Request `i` of the order, out of the bytes of its run, which are empty
  /// after `failure`.
  template <typename Take>
  void take_one(const Run& run, size_t i, std::span<const std::byte> bytes, ReadOutcome failure, const Take& take) {
    const RecordRequest& request = requests_[order_[i]];
    const uint64_t begin = request.place.offset - run.from;
    try {
      std::optional<RecordView> record;
      if (begin < bytes.size()) record = decode_record(bytes.subspan(begin));
      const bool is_wanted = record && record->meta.key == request.key;
      take(order_[i], is_wanted ? ReadOutcome::kRead : failure, is_wanted ? &*record : nullptr);
    } catch (const std::exception& error) {  // no memory for this one
      log_failure(error);
      take(order_[i], ReadOutcome::kFailed, nullptr);
    }
  }

  /// Once for each read(), however many records it costs.
  void log_failure(const std::exception& error) {
    if (!is_logged_.exchange(true)) log_warning("KV store: {}; a miss, and what is kept stays", error.what());
  }

  void open(uint32_t segment) {
    if (file_ && segment_ == segment) return;
    file_.reset();
    file_ = options_.files.open(options_.path(segment), FileSystem::Mode::kRead);
    segment_ = segment;
    // Not every file system can; then reads go through the page cache.
    const int flags = ::fcntl(file_->descriptor(), F_GETFL);
    is_direct_ = flags != -1 && ::fcntl(file_->descriptor(), F_SETFL, flags | O_DIRECT) == 0;
  }

  std::span<const std::byte> read_range(uint64_t from, uint64_t to) {
    const uint64_t begin = is_direct_ ? from / kDirectAlignment * kDirectAlignment : from;
    const uint64_t end = is_direct_ ? (to + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment : to;
    const std::span<std::byte> out = buffer_.at_least(end - begin);
    uint64_t done = 0;
    uint64_t next = 0;  // where to go on: a direct read cannot begin in the middle of a unit
    while (done < to - begin) {
      const size_t count = file_->read_some(begin + next, out.subspan(next));
      if (next + count <= done) break;  // the end of the file
      done = next + count;
      next = is_direct_ ? done / kDirectAlignment * kDirectAlignment : done;
    }
    const uint64_t skipped = std::min(done, from - begin);
    return std::span<const std::byte>(out).subspan(skipped, done - skipped);
  }

  const ReaderOptions& options_;
  std::span<const RecordRequest> requests_;
  std::span<const size_t> order_;
  std::atomic<bool>& is_logged_;
  DirectBuffer buffer_;
  std::unique_ptr<File> file_;
  uint32_t segment_ = 0;
  bool is_direct_ = false;
};

}  // namespace

ReadPool::ReadPool(size_t threads) {
  threads_.reserve(threads);
  try {
    while (threads_.size() < threads)
      threads_.emplace_back([this](const std::stop_token& stop) { help(stop); });
  } catch (const std::system_error& error) {
    log_warning("KV store: {} of {} reading threads could be had ({}); reads are slower", threads_.size(), threads,
                error.what());
  }
}

ReadPool::~ReadPool() {
  for (std::jthread& thread : threads_)
    thread.request_stop();
}

void ReadPool::run(const std::function<void()>& work, size_t helpers) {
  Job job{&work, std::min(helpers, threads_.size()), 0};
  const bool has_helpers = job.wanted > 0;
  if (has_helpers) {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(&job);
    has_work_.notify_all();
  }
  work();
  if (!has_helpers) return;
  std::unique_lock lock(mutex_);
  std::erase(jobs_, &job);
  is_done_.wait(lock, [&] { return job.running == 0; });
}

void ReadPool::help(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (has_work_.wait(lock, stop, [this] { return !jobs_.empty(); })) {
    Job& job = *jobs_.front();
    ++job.running;
    if (--job.wanted == 0) jobs_.pop_front();
    lock.unlock();
    (*job.work)();
    lock.lock();
    if (--job.running == 0) is_done_.notify_all();
  }
}

void read_records(const ReaderOptions& options, std::span<const RecordRequest> requests,
                  const std::function<void(size_t index, ReadOutcome outcome, const RecordView* record)>& take) {
  std::vector<size_t> order(requests.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [&](size_t a, size_t b) {
    const Place& left = requests[a].place;
    const Place& right = requests[b].place;
    return std::tie(left.segment, left.offset) < std::tie(right.segment, right.offset);
  });
  const std::vector<Run> runs = make_runs(requests, order);
  if (runs.empty()) return;
  std::atomic<bool> is_logged{false};
  std::atomic<size_t> next{0};  // relaxed: it only hands out numbers
  const std::function<void()> work = [&] {
    RunReader reader(options, requests, order, is_logged);
    for (size_t i = next.fetch_add(1, std::memory_order_relaxed); i < runs.size();
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      reader.read(runs[i], take);
    }
  };
  options.pool.run(work, runs.size() - 1);
}

}  // namespace tidepool::store
