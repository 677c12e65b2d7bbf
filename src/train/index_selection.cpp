#include "train/index_selection.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "base/buffer.h"
#include "kernels/gathered.h"
#include "kernels/top_k.h"
#include "train/random_stream.h"

namespace tidepool {

namespace {

/// Rows that are scored together: they share what they read of the keys.
constexpr size_t kRowsPerJob = 8;

/// The keys of a sample as the score kernel reads them.
template <typename Real>
void transpose_keys(const Span2d<Real>& keys, const EntryRows::Sample& sample, Real* panels) {
  const size_t width = keys.cols;
  std::fill_n(panels, kernels::key_panels(sample.count) * kernels::kKeysPerPanel * width, Real{0});
  for (size_t j = 0; j < sample.count; ++j) {
    Real* panel = panels + j / kernels::kKeysPerPanel * width * kernels::kKeysPerPanel + j % kernels::kKeysPerPanel;
    const std::span<const Real> key = keys.row(sample.begin + j);
    for (size_t i = 0; i < width; ++i)
      panel[i * kernels::kKeysPerPanel] = key[i];
  }
}

/// Consecutive rows of one sample.
struct Job {
  size_t sample = 0;
  size_t begin = 0;
  size_t end = 0;
};

std::vector<Job> make_jobs(const BatchRows& rows) {
  std::vector<Job> jobs;
  for (size_t s = 0; s < rows.samples.size(); ++s) {
    const size_t end = rows.samples[s].begin + rows.samples[s].count;
    for (size_t row = rows.samples[s].begin; row < end; row += kRowsPerJob)
      jobs.push_back({s, row, std::min(end, row + kRowsPerJob)});
  }
  return jobs;
}

/// The k largest of some thousand scores, as select_top_k() has them, in a fraction of the time: k of the scores are at
/// least as large as the k-th largest of the maxima of 4 k groups, and few more. Those few are what it chooses among.
class TopSelector {
 public:
  size_t select(std::span<const float> scores, size_t k, std::span<uint32_t> chosen) {
    constexpr size_t kGroupsPerSelected = 4;
    constexpr size_t kLengthMin = 4;  // with shorter groups nothing is gained
    constexpr size_t kLanes = kernels::kGatheredLanes;
    const size_t segments = (kGroupsPerSelected * k + kLanes - 1) / kLanes;
    const size_t length = k == 0 ? 0 : scores.size() / (segments * kLanes);
    if (length < kLengthMin) return kernels::select_top_k(scores, k, chosen);
    const kernels::GatheredKernels<float>& kernels = kernels::gathered_kernels<float>();
    maxima_.resize(segments * kLanes);
    // A NaN is no maximum, so that these have an order.
    kernels.lane_maxima(scores.data(), segments, length, maxima_.data());
    const auto kth = maxima_.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::nth_element(maxima_.begin(), kth, maxima_.end(), std::greater<>());
    places_.resize(scores.size());
    const size_t found = kernels.collect(scores.data(), scores.size(), *kth, places_.data());
    values_.resize(found);
    for (size_t i = 0; i < found; ++i)
      values_[i] = scores[places_[i]];
    const size_t kept = kernels::select_top_k(values_, k, chosen);
    for (uint32_t& place : chosen.first(kept))
      place = places_[place];
    return kept;
  }

 private:
  std::vector<float> maxima_;
  std::vector<uint32_t> places_;
  std::vector<float> values_;
};

/// Scratch of one thread.
template <typename Real>
struct SelectionWorkspace {
  Buffer<Real> scores;        ///< of kRowsPerJob rows
  std::vector<float> ranked;  ///< scores of one row as the choice sees them
  TopSelector top;
  std::vector<float> blocks;
  std::vector<const Real*> keys;  ///< of candidates
  Buffer<Real> right;
  Buffer<Real> products;
};

template <typename Real>
class Selector {
 public:
  Selector(Tape<Real>& tape, const IndexInputs<Real>& inputs, const BatchRows& rows, const EntryRows& entries,
           const SelectionRule& rule, const CandidateBlocks& pool)
      : tape_(tape), inputs_(inputs), rows_(rows), entries_(entries), rule_(rule), pool_(pool) {}

  [[nodiscard]] SelectedEntries<Real> run() {
    visible_max_ = most_visible();
    make_selection();
    const std::vector<Job> jobs = make_jobs(rows_);
    if (std::ranges::any_of(jobs, [this](const Job& job) { return needs_panels(job); })) make_panels();
    std::vector<SelectionWorkspace<Real>> work(tape_.pool().thread_count());
    tape_.pool().run(jobs.size(), [&](size_t job, size_t worker) { select(jobs[job], work[worker]); });
    return selection_;
  }

 private:
  [[nodiscard]] size_t heads() const { return inputs_.weights.cols(); }
  [[nodiscard]] size_t width() const { return inputs_.keys.cols(); }
  [[nodiscard]] size_t visible(const Job& job, size_t row) const {
    const SampleRows& sample = rows_.samples[job.sample];
    return entries_.visible(sample.position + row - sample.begin);
  }
  [[nodiscard]] size_t most_visible() const {
    size_t most = 0;
    for (const SampleRows& sample : rows_.samples) {
      if (sample.count > 0) most = std::max(most, entries_.visible(sample.position + sample.count - 1));
    }
    return most;
  }
  [[nodiscard]] size_t drawn() const {
    return static_cast<size_t>(std::lround(rule_.exploration * static_cast<double>(rule_.topk)));
  }

  void make_selection() {
    const size_t rows = inputs_.q.rows();
    const size_t places = std::min(rule_.topk + drawn(), visible_max_);
    selection_.entries = {tape_.template keep<uint32_t>(rows * places).data(), rows, places};
    selection_.counts = tape_.template keep<uint32_t>(rows);
    if (!tape_.is_training()) return;
    selection_.attention = {tape_.template keep<Real>(rows * places).data(), rows, places};
    std::fill_n(selection_.attention.data, rows * places, Real{0});
  }

  void make_panels() {
    panel_offsets_.resize(entries_.samples.size() + 1);
    for (size_t s = 0; s < entries_.samples.size(); ++s) {
      const size_t panels = kernels::key_panels(entries_.samples[s].count);
      panel_offsets_[s + 1] = panel_offsets_[s] + panels * kernels::kKeysPerPanel * width();
    }
    panels_ = Buffer<Real>(panel_offsets_.back());
    tape_.pool().run(entries_.samples.size(), [&](size_t s, size_t) {
      transpose_keys(inputs_.keys.data, entries_.samples[s], panels_.data() + panel_offsets_[s]);
    });
  }

  /// The row keeps to a pool that leaves something out.
  [[nodiscard]] bool has_pool(size_t row) const {
    return rule_.pool_use == PoolUse::kKeepsTo && pool_.counts[row] >= 0;
  }
  /// Everything visible fits into the selection, and no pool is to be made or kept to.
  [[nodiscard]] bool is_trivial(size_t row, size_t count) const {
    const auto pool_size = static_cast<size_t>(rule_.pool.blocks_max * rule_.pool.block_size);
    const bool makes_pool = rule_.pool_use == PoolUse::kMakes && count > pool_size;
    return count <= rule_.topk && !makes_pool && !has_pool(row);
  }
  [[nodiscard]] bool needs_panels(const Job& job) const {
    for (size_t row = job.begin; row < job.end; ++row) {
      if (!is_trivial(row, visible(job, row)) && !has_pool(row)) return true;
    }
    return false;
  }

  void select(const Job& job, SelectionWorkspace<Real>& work) {
    const size_t panel_count = kernels::key_panels(visible(job, job.end - 1));
    const size_t stride = panel_count * kernels::kKeysPerPanel;
    if (needs_panels(job)) {
      if (work.scores.size() < kRowsPerJob * stride)
        work.scores = Buffer<Real>(kRowsPerJob * kernels::key_panels(visible_max_) * kernels::kKeysPerPanel);
      kernels::gathered_kernels<Real>().panel_scores({.q = inputs_.q.data.row(job.begin).data(),
                                                      .weights = inputs_.weights.data.row(job.begin).data(),
                                                      .rows = job.end - job.begin,
                                                      .heads = heads(),
                                                      .width = width(),
                                                      .panels = panels_.data() + panel_offsets_[job.sample],
                                                      .panel_count = panel_count,
                                                      .scores = work.scores.data(),
                                                      .scores_stride = stride});
    }
    for (size_t row = job.begin; row < job.end; ++row) {
      const size_t count = visible(job, row);
      if (rule_.pool_use == PoolUse::kMakes) pool_.counts[row] = -1;
      const std::span<uint32_t> chosen = selection_.entries.row(row);
      size_t kept = 0;
      if (is_trivial(row, count)) {
        kept = count;
        std::iota(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(kept), 0U);
      } else if (has_pool(row)) {
        kept = select_from_pool(job, row, count, work);
      } else {
        kept = select_from_scores(row, {work.scores.data() + (row - job.begin) * stride, count}, work);
      }
      kept = explore(row, count, kept);
      const auto begin = static_cast<uint32_t>(entries_.samples[job.sample].begin);
      for (uint32_t& entry : chosen.first(kept))
        entry += begin;
      selection_.counts[row] = static_cast<uint32_t>(kept);
    }
  }

  [[nodiscard]] size_t select_from_scores(size_t row, std::span<const Real> scores, SelectionWorkspace<Real>& work) {
    work.ranked.assign(scores.begin(), scores.end());
    if (rule_.pool_use == PoolUse::kMakes)
      pool_.counts[row] = choose_candidate_blocks(rule_.pool, work.ranked, pool_.blocks.row(row), work.blocks);
    return work.top.select(work.ranked, rule_.topk, selection_.entries.row(row));
  }

  /// Scores the entries of the row's blocks one after the other, and turns the chosen places back into entries.
  [[nodiscard]] size_t select_from_pool(const Job& job, size_t row, size_t count, SelectionWorkspace<Real>& work) {
    const auto size = static_cast<size_t>(rule_.pool.block_size);
    const std::span<const uint32_t> blocks = pool_.blocks.row(row).first(static_cast<size_t>(pool_.counts[row]));
    work.keys.clear();
    for (const uint32_t block : blocks) {
      for (size_t j = block * size; j < std::min(count, (block + 1) * size); ++j)
        work.keys.push_back(inputs_.keys.data.row(entries_.samples[job.sample].begin + j).data());
    }
    score_candidates(row, work);
    const std::span<uint32_t> chosen = selection_.entries.row(row);
    const size_t kept = work.top.select(work.ranked, rule_.topk, chosen);
    // All blocks but the last are full, so a place maps back by division.
    for (uint32_t& place : chosen.first(kept))
      place = blocks[place / size] * static_cast<uint32_t>(size) + place % static_cast<uint32_t>(size);
    return kept;
  }

  /// The candidates' scores, in the order of operations of panel_scores.
  void score_candidates(size_t row, SelectionWorkspace<Real>& work) {
    const size_t stride = kernels::gathered_stride(heads());
    const auto pool_size = static_cast<size_t>(rule_.pool.blocks_max * rule_.pool.block_size);
    if (work.right.size() == 0) {
      work.right = Buffer<Real>(width() * stride);
      work.products = Buffer<Real>(pool_size * stride);
    }
    const std::span<const Real> q = inputs_.q.data.row(row);
    for (size_t i = 0; i < width(); ++i) {
      for (size_t h = 0; h < heads(); ++h)
        work.right[i * stride + h] = q[h * width() + i];
    }
    kernels::gathered_kernels<Real>().products({work.keys.data(), work.keys.size(), width()}, work.right.data(),
                                               heads(), work.products.data());
    work.ranked.resize(work.keys.size());
    for (size_t j = 0; j < work.keys.size(); ++j) {
      Real score = 0;
      for (size_t h = 0; h < heads(); ++h)
        score += std::max(work.products[j * stride + h], Real{0}) * inputs_.weights.data.at(row, h);
      work.ranked[j] = static_cast<float>(score);
    }
  }

  /// Draws further entries of the `count` visible ones; `kept` are chosen. Returns how many then are.
  [[nodiscard]] size_t explore(size_t row, size_t count, size_t kept) {
    const size_t end = std::min(kept + drawn(), count);
    const std::span<uint32_t> chosen = selection_.entries.row(row);
    for (uint64_t draw = 0; kept < end; ++draw) {
      const uint64_t bits = split_mix(split_mix(rule_.seed + kSplitMixStep * (row + 1)) + kSplitMixStep * draw);
      const auto entry = static_cast<uint32_t>(bits % count);
      const auto place = std::lower_bound(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(kept), entry);
      const auto index = static_cast<size_t>(place - chosen.begin());
      if (index < kept && *place == entry) continue;
      std::copy_backward(place, chosen.begin() + static_cast<std::ptrdiff_t>(kept),
                         chosen.begin() + static_cast<std::ptrdiff_t>(kept + 1));
      chosen[index] = entry;
      ++kept;
    }
    return kept;
  }

  Tape<Real>& tape_;
  const IndexInputs<Real>& inputs_;
  const BatchRows& rows_;
  const EntryRows& entries_;
  const SelectionRule& rule_;
  const CandidateBlocks& pool_;
  size_t visible_max_ = 0;
  SelectedEntries<Real> selection_;
  Buffer<Real> panels_;  ///< keys of all samples, transposed
  std::vector<size_t> panel_offsets_;
};

}  // namespace

template <typename Real>
SelectedEntries<Real> select_entries(Tape<Real>& tape, const IndexInputs<Real>& inputs, const BatchRows& rows,
                                     const EntryRows& entries, const SelectionRule& rule, CandidateBlocks& pool) {
  if (rule.pool_use == PoolUse::kMakes) {
    const auto blocks = static_cast<size_t>(rule.pool.blocks_max);
    pool.blocks = {tape.template keep<uint32_t>(rows.rows * blocks).data(), rows.rows, blocks};
    pool.counts = tape.template keep<int32_t>(rows.rows);
  }
  return Selector<Real>(tape, inputs, rows, entries, rule, pool).run();
}

template SelectedEntries<float> select_entries(Tape<float>&, const IndexInputs<float>&, const BatchRows&,
                                               const EntryRows&, const SelectionRule&, CandidateBlocks&);
template SelectedEntries<double> select_entries(Tape<double>&, const IndexInputs<double>&, const BatchRows&,
                                                const EntryRows&, const SelectionRule&, CandidateBlocks&);

}  // namespace tidepool
