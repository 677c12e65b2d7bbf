#pragma once

#include <filesystem>
#include <memory>

#include "bench/measure.h"
#include "bench/suite.h"
#include "bench/synthetic_checkpoint.h"
#include "kernels/runtime.h"
#include "model/model.h"

/// Parts of the suite. Not for use outside bench/.
namespace tidepool::bench {

/// What every measurement works with.
struct Workbench {
  ThreadPool& pool;
  const kernels::KernelTable& table;
  const Machine& machine;
  /// Random bytes, far more than the caches hold; no E4M3 code among them is NaN.
  std::span<const std::byte> bytes;

  [[nodiscard]] Runtime runtime() const { return {pool, table}; }
};

/// One figure: its name and how to measure it.
struct Entry {
  std::string name;
  std::function<Result(const Workbench&)> measure;
  /// Additions and multiplications of those that take long: a whole run leaves out what has no time.
  double operations = 0;
};

/// Why a whole run that has taken `seconds` has no time for an entry on a machine of `flops`, if so.
[[nodiscard]] std::optional<std::string> reason_to_skip(const Entry& entry, double flops, double seconds);

/// Kernels by themselves.
[[nodiscard]] std::vector<Entry> kernel_entries();
/// Products of two computed matrices, as training has them.
[[nodiscard]] std::vector<Entry> train_entries();
/// Whole layers and steps of a model cut to four layers; it is written when the first of them runs.
[[nodiscard]] std::vector<Entry> model_entries();

/// A model of the released width, written, opened and unlinked.
[[nodiscard]] std::unique_ptr<Model> make_cut_model(const CutModel& cut);
/// The KV cache and its store, in folders below `storage`.
[[nodiscard]] std::vector<Entry> kv_entries(const std::filesystem::path& storage);

/// The cut model's vision tower on one picture.
[[nodiscard]] Result vision_cut4(const Workbench& bench, const Model& model);

/// How often a figure is measured, and what one call of `work` does.
struct Work {
  std::string shape;
  int repeats = 9;
  int warm_ups = 1;       ///< calls before the first that counts
  double bytes = 0;       ///< of weights, KV and rows that memory must be asked for
  double operations = 0;  ///< additions and multiplications
  std::function<void()> run;
};

/// 512 rows through two dense FP8 matrices. `bench` must outlive it.
[[nodiscard]] Work dense_n512_work(const Workbench& bench);
/// Comparisons with other libraries, those that this build has.
[[nodiscard]] std::vector<Entry> yardstick_entries();

/// Runs the work and the limit by turns, as other load on the machine comes and goes; medians of both, and of the
/// share.
[[nodiscard]] Result against_bandwidth(const Workbench& bench, const Work& work);
[[nodiscard]] Result against_peak(const Workbench& bench, const Work& work);
/// Against the larger of bytes / bandwidth and operations / peak.
[[nodiscard]] Result against_both(const Workbench& bench, const Work& work);

}  // namespace tidepool::bench
