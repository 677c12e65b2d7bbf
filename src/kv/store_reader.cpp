#include "kv/store_reader.h"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <thread>
#include <tuple>

#include "base/error.h"

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
  RunReader(const ReaderOptions& options, std::span<const RecordRequest> requests, std::span<const size_t> order)
      : options_(options), requests_(requests), order_(order) {}

  template <typename Take>
  void read(const Run& run, const Take& take) {
    ReadOutcome failure = ReadOutcome::kDamaged;
    std::span<const std::byte> bytes;  // of the file from run.from on; short where it ends
    try {
      open(requests_[order_[run.begin]].place.segment);
      bytes = read_range(run.from, run.to);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kNotFound) failure = ReadOutcome::kGone;
    }
    for (size_t i = run.begin; i < run.end; ++i) {
      const RecordRequest& request = requests_[order_[i]];
      const uint64_t begin = request.place.offset - run.from;
      std::optional<RecordView> record;
      if (begin < bytes.size()) record = decode_record(bytes.subspan(begin));
      const bool is_wanted = record && record->meta.key == request.key;
      take(order_[i], is_wanted ? ReadOutcome::kRead : failure, is_wanted ? &*record : nullptr);
    }
  }

 private:
  void open(uint32_t segment) {
    if (file_ && segment_ == segment) return;
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
  DirectBuffer buffer_;
  std::unique_ptr<File> file_;
  uint32_t segment_ = 0;
  bool is_direct_ = false;
};

}  // namespace

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
  std::atomic<size_t> next{0};  // relaxed: it only hands out numbers
  std::mutex mutex;
  std::exception_ptr failed;
  const auto work = [&] {
    try {
      RunReader reader(options, requests, order);
      for (size_t i = next.fetch_add(1, std::memory_order_relaxed); i < runs.size();
           i = next.fetch_add(1, std::memory_order_relaxed)) {
        reader.read(runs[i], take);
      }
    } catch (const std::exception&) {  // no memory: for the caller to know
      const std::lock_guard lock(mutex);
      failed = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (size_t i = 1; i < std::min(options.threads, runs.size()); ++i)
      threads.emplace_back(work);
    work();
  }
  if (failed) std::rethrow_exception(failed);
}

}  // namespace tidepool::store
