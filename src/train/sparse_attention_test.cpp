#include "train/sparse_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "train/gradient_check.h"

namespace tidepool {
namespace {

constexpr size_t kAttentionHeads = 3;
constexpr size_t kAttentionWidth = 16;

/// Rows of two samples with windows of 4, which end at their sample, and a few chosen entries each.
template <typename Real>
struct AttentionCase {
  size_t rows;
  Leaf<Real> q;
  Leaf<Real> local;
  Leaf<Real> entries;
  Leaf<Real> sink;
  std::vector<RowRange> ranges;
  std::vector<uint32_t> chosen;
  std::vector<uint32_t> counts;
  std::vector<Real> attention;

  static constexpr size_t kChosenMax = 5;

  AttentionCase(uint64_t seed, size_t row_count, size_t entry_count)
      : AttentionCase(std::make_unique<TestRandom>(seed), row_count, entry_count) {}

  [[nodiscard]] SelectedEntries<Real> selection() {
    return {.entries = {chosen.data(), rows, kChosenMax},
            .counts = counts,
            .attention = {attention.data(), rows, kChosenMax}};
  }
  [[nodiscard]] Value<Real> run(Tape<Real>& tape, const SelectedEntries<Real>* chosen_entries) {
    return sparse_attention<Real>(
        tape,
        {.q = q, .local = local, .local_rows = ranges, .entries = entries, .selection = chosen_entries, .sink = sink});
  }

 private:
  AttentionCase(const std::unique_ptr<TestRandom>& random, size_t row_count, size_t entry_count)
      : rows(row_count),
        q(*random, rows, kAttentionHeads * kAttentionWidth, 2),
        local(*random, rows, kAttentionWidth),
        entries(*random, entry_count, kAttentionWidth),
        sink(*random, 1, kAttentionHeads),
        chosen(rows * kChosenMax),
        counts(rows),
        attention(rows * kChosenMax) {
    std::vector<uint32_t> all(entry_count);
    std::iota(all.begin(), all.end(), 0U);
    for (size_t row = 0; row < rows; ++row) {
      const size_t sample_begin = row < rows / 3 ? 0 : rows / 3;
      ranges.push_back({std::max(sample_begin, row < 3 ? 0 : row - 3), row + 1});
      counts[row] = static_cast<uint32_t>(random->below(kChosenMax + 1));
      for (size_t i = 0; i < counts[row]; ++i)
        std::swap(all[i], all[i + random->below(entry_count - i)]);
      std::copy_n(all.begin(), counts[row], chosen.begin() + static_cast<ptrdiff_t>(row * kChosenMax));
      std::sort(chosen.begin() + static_cast<ptrdiff_t>(row * kChosenMax),
                chosen.begin() + static_cast<ptrdiff_t>(row * kChosenMax + counts[row]));
    }
  }
};

TEST(SparseAttention, GradientsAreThoseOfFiniteDifferences) {
  AttentionCase<double> c(1, 9, 11);
  const SelectedEntries<double> selection = c.selection();
  for (const SelectedEntries<double>* chosen : {&selection, static_cast<const SelectedEntries<double>*>(nullptr)}) {
    expect_gradients({.run = [&](Tape<double>& tape) { return std::vector{c.run(tape, chosen)}; },
                      .inputs = {{"q", c.q}, {"local", c.local}, {"entries", c.entries}, {"sink", c.sink}},
                      .entries = 100});
  }
}

TEST(SparseAttention, IsTheFormulaOverAllKeysAtOnce) {
  AttentionCase<double> c(2, 12, 7);
  const SelectedEntries<double> selection = c.selection();
  ThreadPool pool(2);
  Tape<double> tape(pool, Tape<double>::Mode::kForward);
  const Value<double> out = c.run(tape, &selection);
  for (size_t row = 0; row < c.rows; ++row) {
    std::vector<std::span<const double>> keys;
    for (size_t j = c.ranges[row].begin; j < c.ranges[row].end; ++j)
      keys.emplace_back(c.local.value().data.row(j));
    for (const uint32_t j : selection.of(row))
      keys.emplace_back(c.entries.value().data.row(j));
    std::vector<double> attention(keys.size());
    for (size_t h = 0; h < kAttentionHeads; ++h) {
      const double* q = c.q.value().data.row(row).data() + h * kAttentionWidth;
      double sum = std::exp(c.sink.data()[h]);
      std::vector<double> result(kAttentionWidth);
      std::vector<double> terms;
      for (const std::span<const double> key : keys) {
        terms.push_back(std::exp(std::inner_product(key.begin(), key.end(), q, 0.0) / 4));  // sqrt(16)
        sum += terms.back();
        for (size_t i = 0; i < kAttentionWidth; ++i)
          result[i] += terms.back() * key[i];
      }
      for (size_t i = 0; i < kAttentionWidth; ++i)
        EXPECT_NEAR(out.data.at(row, h * kAttentionWidth + i), result[i] / sum, 1e-13);
      for (size_t j = 0; j < keys.size(); ++j)
        attention[j] += terms[j] / sum;
    }
    const size_t local = c.ranges[row].end - c.ranges[row].begin;
    for (size_t j = local; j < keys.size(); ++j)
      EXPECT_NEAR(c.attention[row * AttentionCase<double>::kChosenMax + j - local], attention[j], 1e-13);
  }
}

/// Everything that one step leaves behind.
std::vector<float> step(size_t threads) {
  AttentionCase<float> c(3, 400, 90);
  const SelectedEntries<float> selection = c.selection();
  ThreadPool pool(threads);
  Tape<float> tape(pool, Tape<float>::Mode::kTraining);
  const Value<float> out = c.run(tape, &selection);
  TestRandom random(4);
  for (size_t i = 0; i < out.rows() * out.cols(); ++i)
    out.grad.data[i] = static_cast<float>(random.value());
  tape.backward();
  std::vector<float> all(out.data.data, out.data.data + out.rows() * out.cols());
  for (const std::vector<float>* values :
       {&c.q.grad(), &c.local.grad(), &c.entries.grad(), &c.sink.grad(), &c.attention})
    all.insert(all.end(), values->begin(), values->end());
  return all;
}

TEST(SparseAttention, IsTheSameToTheBitForAnyNumberOfThreads) {
  const std::vector<float> one = step(1);
  EXPECT_EQ(step(2), one);
  EXPECT_EQ(step(5), one);
}

TEST(SparseAttention, FloatFollowsDouble) {
  AttentionCase<double> exact(5, 40, 20);
  AttentionCase<float> rounded(5, 40, 20);
  ThreadPool pool(2);
  Tape<double> exact_tape(pool, Tape<double>::Mode::kTraining);
  Tape<float> rounded_tape(pool, Tape<float>::Mode::kTraining);
  const SelectedEntries<double> exact_selection = exact.selection();
  const SelectedEntries<float> rounded_selection = rounded.selection();
  const Value<double> a = exact.run(exact_tape, &exact_selection);
  const Value<float> b = rounded.run(rounded_tape, &rounded_selection);
  std::fill_n(a.grad.data, a.rows() * a.cols(), 1.0);
  std::fill_n(b.grad.data, b.rows() * b.cols(), 1.0F);
  exact_tape.backward();
  rounded_tape.backward();
  for (size_t i = 0; i < a.rows() * a.cols(); ++i)
    EXPECT_NEAR(b.data.data[i], a.data.data[i], 1e-6);
  // Sums of up to 40 rows' contributions of order 1.
  for (size_t i = 0; i < exact.entries.grad().size(); ++i)
    EXPECT_NEAR(rounded.entries.grad()[i], exact.entries.grad()[i], 2e-5);
  for (size_t i = 0; i < exact.q.grad().size(); ++i)
    EXPECT_NEAR(rounded.q.grad()[i], exact.q.grad()[i], 2e-5);
}

}  // namespace
}  // namespace tidepool
