#include "bench/suite.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "base/temp_folder.h"
#include "bench/machine_limits.h"
#include "bench/suite_internal.h"

namespace tidepool::bench {

namespace {

constexpr size_t kRandomBytes = size_t{1} << 30;

/// Random bytes that are ordinary numbers in every format: as bfloat16 +-0.5 to +-2, as E4M3 never NaN.
Buffer<std::byte> random_bytes(ThreadPool& pool) {
  // In small pages, as the mapped files of a checkpoint are.
  Buffer<std::byte> bytes = Buffer<std::byte>::uninitialised(kRandomBytes);
  (void)::madvise(bytes.data(), bytes.size(), MADV_NOHUGEPAGE);
  constexpr size_t kParts = 64;
  constexpr size_t kStep = kRandomBytes / kParts;
  pool.run(kParts, [&](size_t part, size_t) {
    uint64_t state = part * 0x9e3779b97f4a7c15U + 1;
    for (size_t at = part * kStep; at < (part + 1) * kStep; at += sizeof state) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      const uint64_t word = (state & 0x80ef80ef80ef80efU) | 0x3f003f003f003f00U;
      std::memcpy(bytes.data() + at, &word, sizeof word);
    }
  });
  return bytes;
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

Multiplier vectors_of(const kernels::KernelTable& table) {
  if (&table == &kernels::reference_kernels()) return Multiplier::kScalar;
  return table.name == "avx2" ? Multiplier::kAvx2 : Multiplier::kAvx512;
}

/// What a table's figures are judged by, and the name of that in the JSON.
struct Peak {
  Multiplier multiplier;
  const char* name;
};
Peak peak_of(const kernels::KernelTable& table) {
  if (table.name == "amx") return {Multiplier::kAmxBf16, "amx_bf16_tflops"};
  if (table.name == "avx512bf16") return {Multiplier::kAvx512Bf16, "avx512_bf16_tflops"};
  return {vectors_of(table), "fma_gflops"};
}

constexpr size_t kCeilingRepeats = 5;

/// What a whole run may take, and how much of the peak a long entry reaches at the least (Skylake without bfloat16:
/// 0.26).
constexpr double kSecondsMax = 300;
constexpr double kPeakShare = 0.25;

double median_read_bandwidth(ThreadPool& pool, std::span<const std::byte> bytes, size_t streams,
                             size_t repeats = kCeilingRepeats) {
  std::vector<double> rates(repeats);
  for (double& rate : rates)
    rate = measure_read_bandwidth(pool, bytes, streams);
  return median(std::move(rates));
}

double median_peak(ThreadPool& pool, Multiplier multiplier, size_t repeats = kCeilingRepeats) {
  std::vector<double> peaks(repeats);
  for (double& peak : peaks)
    peak = measure_peak_flops(pool, multiplier);
  return median(std::move(peaks));
}

std::optional<double> tflops_if_present(ThreadPool& pool, Multiplier multiplier) {
  if (!has_multiplier(multiplier)) return std::nullopt;
  return median_peak(pool, multiplier) / 1e12;
}

Machine measure_machine(ThreadPool& pool, const kernels::KernelTable& table, std::span<const std::byte> bytes) {
  Machine machine;
  machine.cpu = cpu_name();
  machine.threads = pool.thread_count();
  machine.isa = table.name;
  for (size_t threads = 1; threads <= pool.thread_count(); ++threads) {
    ThreadPool some(threads);
    double best = 0;
    for (const size_t streams : kReadStreams) {
      const double rate = median_read_bandwidth(some, bytes, streams);
      if (rate > best) machine.read_streams = streams;
      best = std::max(best, rate);
    }
    machine.read_gbps_by_threads.push_back(best / 1e9);
  }
  machine.read_gbps = machine.read_gbps_by_threads.back();
  const TempFolder folder(std::filesystem::temp_directory_path());
  if (const std::optional<double> rate = measure_disk_read(folder.path())) machine.disk_read_gbps = *rate / 1e9;
  machine.fma_gflops = median_peak(pool, vectors_of(table)) / 1e9;
  machine.avx512_bf16_tflops = tflops_if_present(pool, Multiplier::kAvx512Bf16);
  machine.amx_bf16_tflops = tflops_if_present(pool, Multiplier::kAmxBf16);
  return machine;
}

std::vector<Entry> entries_of(const SuiteOptions& options) {
  if (options.suite == "kv") return kv_entries(options.storage);
  std::vector<Entry> entries = kernel_entries();
  for (Entry& entry : yardstick_entries())
    entries.push_back(std::move(entry));
  for (Entry& entry : train_entries())
    entries.push_back(std::move(entry));
  for (Entry& entry : model_entries())
    entries.push_back(std::move(entry));
  return entries;
}

}  // namespace

namespace {

/// Seconds of the work, and beside each the limits of that moment.
struct Rounds {
  std::vector<double> seconds;
  std::vector<double> bandwidth;
  std::vector<double> peak;
};

/// Returns when all threads of the pool are at work. Those that were done with the last limit some 50 us before the
/// slowest one sleep, and waking one takes some 100 us on a virtual machine: as long as the shortest work here, where a
/// step of the engine has its kernels follow each other too fast for any thread to sleep.
void wake_all(ThreadPool& pool) {
  std::atomic<size_t> awake{0};
  pool.run(pool.thread_count(), [&](size_t /*part*/, size_t /*worker*/) {
    ++awake;
    while (awake < pool.thread_count())
      std::this_thread::yield();
  });
}

Rounds run_rounds(const Workbench& bench, const Work& work, bool needs_bandwidth, bool needs_peak) {
  // A limit read once beside long work would be what the host did just then.
  const size_t readings = std::max<size_t>(1, kCeilingRepeats / static_cast<size_t>(work.repeats));
  const auto bandwidth = [&] {
    return median_read_bandwidth(bench.pool, bench.bytes, bench.machine.read_streams, readings);
  };
  const auto peak = [&] { return median_peak(bench.pool, peak_of(bench.table).multiplier, readings); };
  Rounds rounds;
  for (int i = 0; i < work.warm_ups; ++i)
    work.run();
  for (int i = 0; i < work.repeats; ++i) {
    rounds.bandwidth.push_back(needs_bandwidth ? bandwidth() : 1);
    rounds.peak.push_back(needs_peak ? peak() : 1);
    wake_all(bench.pool);
    rounds.seconds.push_back(seconds_of(work.run));
  }
  return rounds;
}

/// What every result says of its work.
Result described(const Work& work, const Rounds& rounds) {
  Result result;
  result.shape = work.shape;
  if (work.bytes > 0 && work.operations > 0) {
    result.gflops = work.operations / median(rounds.seconds) / 1e9;
    result.operations_per_byte = work.operations / work.bytes;
  }
  return result;
}

Result as_rate(const Work& work, const Rounds& rounds, double amount, const std::vector<double>& limits) {
  std::vector<double> shares;
  shares.reserve(limits.size());
  for (size_t i = 0; i < limits.size(); ++i)
    shares.push_back(amount / rounds.seconds[i] / limits[i]);
  Result result = described(work, rounds);
  result.median = amount / median(rounds.seconds) / 1e9;
  result.limit_value = median(limits) / 1e9;
  result.share = median(shares);
  return result;
}

}  // namespace

Result against_bandwidth(const Workbench& bench, const Work& work) {
  const Rounds rounds = run_rounds(bench, work, true, false);
  Result result = as_rate(work, rounds, work.bytes, rounds.bandwidth);
  result.unit = "GB/s";
  result.limit = "read_gbps";
  return result;
}

Result against_peak(const Workbench& bench, const Work& work) {
  const Rounds rounds = run_rounds(bench, work, false, true);
  Result result = as_rate(work, rounds, work.operations, rounds.peak);
  result.unit = "GFLOP/s";
  result.limit = peak_of(bench.table).name;
  return result;
}

Result against_both(const Workbench& bench, const Work& work) {
  const Rounds rounds = run_rounds(bench, work, true, work.operations > 0);
  std::vector<double> bounds;
  std::vector<double> shares;
  size_t bound_by_bytes = 0;
  for (size_t i = 0; i < rounds.seconds.size(); ++i) {
    const double by_bytes = work.bytes / rounds.bandwidth[i];
    const double by_operations = work.operations > 0 ? work.operations / rounds.peak[i] : 0;
    bound_by_bytes += by_bytes > by_operations ? 1 : 0;
    bounds.push_back(std::max(by_bytes, by_operations));
    shares.push_back(bounds.back() / rounds.seconds[i]);
  }
  Result result = described(work, rounds);
  result.median = median(rounds.seconds) * 1e3;
  result.unit = "ms";
  result.limit = 2 * bound_by_bytes > rounds.seconds.size() ? "bytes / read_gbps"
                                                            : fmt::format("operations / {}", peak_of(bench.table).name);
  result.limit_value = median(bounds) * 1e3;
  result.share = median(shares);
  return result;
}

namespace {

/// Operations a second, as the table multiplies.
double peak_flops(const Workbench& bench) {
  const Machine& machine = bench.machine;
  switch (peak_of(bench.table).multiplier) {
    case Multiplier::kAmxBf16: return machine.amx_bf16_tflops.value_or(0) * 1e12;
    case Multiplier::kAvx512Bf16: return machine.avx512_bf16_tflops.value_or(0) * 1e12;
    default: return machine.fma_gflops * 1e9;
  }
}

}  // namespace

std::optional<std::string> reason_to_skip(const Entry& entry, double flops, double seconds) {
  const double expected = entry.operations / (kPeakShare * flops);
  if (entry.operations == 0 || seconds + expected <= kSecondsMax) return std::nullopt;
  return fmt::format(
      "about {:.0f} s on this machine, and a whole run takes five minutes at most; --only {} measures it", expected,
      entry.name);
}

std::vector<std::string> suite_names(const SuiteOptions& options) {
  std::vector<std::string> names;
  for (const Entry& entry : entries_of(options))
    names.push_back(entry.name);
  return names;
}

SuiteResult run_suite(const SuiteOptions& options) {
  const std::vector<Entry> entries = entries_of(options);
  const auto is_wanted = [&](const Entry& entry) { return options.only.empty() || options.only == entry.name; };
  if (std::ranges::none_of(entries, is_wanted)) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("no benchmark is called \"{}\"; there are: {}", options.only,
                                                         fmt::join(suite_names(options), ", ")));
  }
  const auto start = std::chrono::steady_clock::now();
  ThreadPool pool(options.threads);
  const kernels::KernelTable& table = kernels::select_kernels(options.isa);
  const Buffer<std::byte> bytes = random_bytes(pool);
  SuiteResult suite;
  if (options.on_start) options.on_start("machine");
  suite.machine = measure_machine(pool, table, bytes.span());
  const Workbench bench{pool, table, suite.machine, bytes.span()};
  for (const Entry& entry : entries) {
    if (!is_wanted(entry)) continue;
    if (options.on_start) options.on_start(entry.name);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    Result result;
    if (options.only.empty()) result.skipped = reason_to_skip(entry, peak_flops(bench), taken.count());
    if (!result.skipped) result = entry.measure(bench);
    result.name = entry.name;
    result.threads = pool.thread_count();
    suite.results.push_back(std::move(result));
  }
  return suite;
}

}  // namespace tidepool::bench
