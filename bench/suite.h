#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "kernels/kernel_table.h"

/// `tidepool bench kernels`: the kernels and whole steps at released shapes, each beside the limit of this machine that
/// bounds it, measured in the same run. docs/bench.md explains the figures.
namespace tidepool::bench {

/// What a figure is judged by.
enum class LimitKind : uint8_t {
  kReadBandwidth,  ///< `median` and `limit_value` in GB/s
  kPeakFlops,      ///< both in GFLOP/s
  kTime,           ///< both in ms; the limit is the larger of bytes / bandwidth and operations / peak
  kRatio,          ///< plain ratio against a bound it should stay below
};

struct Result {
  std::string name;
  std::string shape;
  size_t threads = 0;
  double median = 0;
  std::string unit;
  std::string limit;  ///< what bounds it, e.g. "read_gbps"
  double limit_value = 0;
  /// How much of the limit was reached, 1 at best; for times and ratios the bound divided by the figure.
  double share = 0;
  /// Its place under the roofline; 0 where operations or bytes are not counted.
  double gflops = 0;
  double operations_per_byte = 0;  ///< of memory that must be read or written
  /// Why it was not measured; then nothing but the name counts.
  std::optional<std::string> skipped;
  /// Where time went, for results that say so: name and share of the measured time.
  std::vector<std::pair<std::string, double>> split;
};

/// This machine's own ceilings.
struct Machine {
  std::string cpu;
  size_t threads = 0;
  std::string isa;
  double read_gbps = 0;                      ///< all threads
  std::vector<double> read_gbps_by_threads;  ///< 1..threads
  size_t read_streams = 1;                   ///< places at which a thread reads fastest
  std::optional<double> disk_read_gbps;      ///< of the folder for temporary files, past the page cache
  double fma_gflops = 0;                     ///< binary32 multiply-adds of the best vectors that `isa` uses
  std::optional<double> avx512_bf16_tflops;  ///< VDPBF16PS, where there is one
  std::optional<double> amx_bf16_tflops;     ///< tiles, where they are
};

struct SuiteOptions {
  std::string suite = "kernels";  ///< or "kv"
  std::filesystem::path storage;  ///< of the suite "kv": where its folders are made and removed again
  size_t threads = 0;             ///< 0: one per physical core
  std::string isa = "auto";
  std::string only;  ///< run this result only; empty: all
  /// Called before each measurement with its name.
  std::function<void(std::string_view name)> on_start;
};

struct SuiteResult {
  Machine machine;
  std::vector<Result> results;
};

/// Names that `only` knows, in the order they run.
[[nodiscard]] std::vector<std::string> suite_names(const SuiteOptions& options);

/// Runs the suite. Needs about 9 GB of memory. Throws Error (kUnsupported, kInvalidArgument for an unknown name, kIo).
[[nodiscard]] SuiteResult run_suite(const SuiteOptions& options);

/// The document that `--json` prints.
[[nodiscard]] std::string to_json(const SuiteResult& result);
/// The table for people.
[[nodiscard]] std::string to_table(const SuiteResult& result);
/// A roofline plot (Williams, Waterman and Patterson 2009): rates over operations per byte beneath what this machine's
/// memory and multipliers allow; below it the shares of the limits, as bars.
[[nodiscard]] std::string to_svg(const SuiteResult& result);

}  // namespace tidepool::bench
