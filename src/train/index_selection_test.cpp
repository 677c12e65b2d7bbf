#include "train/index_selection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "formats/row_format.h"
#include "kernels/kernel_table.h"
#include "kernels/top_k.h"
#include "train/gradient_check.h"

namespace tidepool {
namespace {

constexpr size_t kSelectionHeads = 5;
constexpr size_t kSelectionWidth = 32;

/// Samples of 150, 3 and 90 tokens; the second one's decoder begins late.
TokenBatch make_short_batch() {
  TokenBatch batch;
  batch.segments = {
      {.begin = 0, .count = 150, .decoder_begin = 100}, {.begin = 150, .count = 3}, {.begin = 153, .count = 90}};
  return batch;
}

/// One long sample, with so many entries that they are looked through before they are ranked.
TokenBatch make_long_batch() {
  TokenBatch batch;
  batch.segments = {{.begin = 0, .count = 1500}};
  return batch;
}

/// Queries and keys on the FP4 grid and weights of few values, so that equal scores are common.
struct SelectionCase {
  BatchRows rows;
  EntryRows entries;
  Leaf<float> q;
  Leaf<float> weights;
  Leaf<float> keys;

  SelectionCase(uint64_t seed, const BatchRows& batch_rows, size_t ratio)
      : SelectionCase(seed, batch_rows, entry_rows(make_short_batch(), ratio)) {}
  SelectionCase(uint64_t seed, const BatchRows& batch_rows, const EntryRows& entry_layout)
      : rows(batch_rows),
        entries(entry_layout),
        q(rows.rows, kSelectionHeads * kSelectionWidth),
        weights(rows.rows, kSelectionHeads),
        keys(entries.rows, kSelectionWidth) {
    TestRandom random(seed);
    for (Leaf<float>* leaf : {&q, &keys}) {
      for (float& value : leaf->data())
        value = random.below(4) == 0 ? static_cast<float>(random.below(3)) - 1.0F : 0.0F;
    }
    for (float& weight : weights.data())
      weight = 0.5F * static_cast<float>(random.below(3));
  }
  [[nodiscard]] IndexInputs<float> inputs() { return {q, weights, keys}; }

  /// Scores of the entries that `row`, a row of sample `s`, sees, as the engine has them.
  std::vector<float> engine_scores(size_t s, size_t row) {
    const size_t visible = entries.visible(rows.samples[s].position + row - rows.samples[s].begin);
    const size_t bytes = row_bytes(RowFormat::kFloat32, kSelectionWidth);
    std::vector<float> scores(visible);
    std::vector<float> scratch(kernels::index_scratch_floats(kSelectionWidth));
    const kernels::KeyRun run = {
        reinterpret_cast<const std::byte*>(keys.data().data() + entries.samples[s].begin * kSelectionWidth), visible};
    kernels::reference_kernels().index_scores({.q = q.value().data.row(row).data(),
                                               .weights = weights.value().data.row(row).data(),
                                               .heads = kSelectionHeads,
                                               .width = kSelectionWidth,
                                               .runs = &run,
                                               .run_count = 1,
                                               .key_stride = bytes,
                                               .format = RowFormat::kFloat32,
                                               .scores = scores.data(),
                                               .scratch = scratch.data()});
    return scores;
  }
};

template <typename Body>
void for_each_row(const BatchRows& rows, const Body& body) {
  for (size_t s = 0; s < rows.samples.size(); ++s) {
    for (size_t i = 0; i < rows.samples[s].count; ++i)
      body(s, rows.samples[s].begin + i);
  }
}

std::vector<uint32_t> engine_choice(std::span<const float> scores, size_t k) {
  std::vector<uint32_t> chosen(std::min(k, scores.size()));
  chosen.resize(kernels::select_top_k(scores, k, chosen));
  return chosen;
}

/// What the row selected, counted within its sample.
std::vector<uint32_t> chosen_by(const SelectedEntries<float>& selection, const EntryRows& entries, size_t s,
                                size_t row) {
  std::vector<uint32_t> result(selection.of(row).begin(), selection.of(row).end());
  for (uint32_t& entry : result)
    entry -= static_cast<uint32_t>(entries.samples[s].begin);
  return result;
}

TEST(IndexSelection, IsTheEnginesToTheLastTie) {
  for (const size_t ratio : {size_t{1}, size_t{2}}) {
    SelectionCase c(ratio, encoder_rows(make_short_batch()), ratio);
    ThreadPool pool(2);
    Tape<float> tape(pool, Tape<float>::Mode::kTraining);
    CandidateBlocks blocks;
    const SelectedEntries<float> selection = select_entries(tape, c.inputs(), c.rows, c.entries, {.topk = 9}, blocks);
    for_each_row(c.rows, [&](size_t s, size_t row) {
      EXPECT_EQ(chosen_by(selection, c.entries, s, row), engine_choice(c.engine_scores(s, row), 9)) << row;
    });
  }
}

TEST(IndexSelection, IsTheEnginesOverLongSamples) {
  SelectionCase c(5, encoder_rows(make_long_batch()), entry_rows(make_long_batch(), 1));
  ThreadPool pool(2);
  Tape<float> tape(pool, Tape<float>::Mode::kForward);
  CandidateBlocks blocks;
  for (const size_t k : {size_t{1}, size_t{20}}) {
    const SelectedEntries<float> selection = select_entries(tape, c.inputs(), c.rows, c.entries, {.topk = k}, blocks);
    for (size_t row = 31; row < c.rows.rows; row += 67)
      EXPECT_EQ(chosen_by(selection, c.entries, 0, row), engine_choice(c.engine_scores(0, row), k)) << row;
  }
}

TEST(IndexSelection, KeepsToTheEnginesCandidatePool) {
  constexpr CandidatePoolConfig kPool{.block_size = 4, .blocks_max = 5};
  SelectionCase maker(7, decoder_rows(make_short_batch()), 1);
  SelectionCase keeper(8, decoder_rows(make_short_batch()), 1);
  ThreadPool pool(2);
  Tape<float> tape(pool, Tape<float>::Mode::kForward);
  CandidateBlocks blocks;
  const SelectedEntries<float> made = select_entries(tape, maker.inputs(), maker.rows, maker.entries,
                                                     {.topk = 6, .pool = kPool, .pool_use = PoolUse::kMakes}, blocks);
  const SelectedEntries<float> kept = select_entries(tape, keeper.inputs(), keeper.rows, keeper.entries,
                                                     {.topk = 6, .pool = kPool, .pool_use = PoolUse::kKeepsTo}, blocks);
  for_each_row(maker.rows, [&](size_t s, size_t row) {
    const std::vector<float> scores = maker.engine_scores(s, row);
    EXPECT_EQ(chosen_by(made, maker.entries, s, row), engine_choice(scores, 6)) << row;
    std::vector<uint32_t> candidates(5);
    std::vector<float> scratch;
    const int32_t count = choose_candidate_blocks(kPool, scores, candidates, scratch);
    std::vector<float> masked = keeper.engine_scores(s, row);
    for (size_t j = 0; count >= 0 && j < masked.size(); ++j) {
      if (std::find(candidates.begin(), candidates.end(), j / 4) == candidates.end())
        masked[j] = -std::numeric_limits<float>::infinity();
    }
    EXPECT_EQ(chosen_by(kept, keeper.entries, s, row), engine_choice(masked, 6)) << row;
  });
}

TEST(IndexSelection, ExplorationDrawsFurtherVisibleEntriesByItsSeed) {
  SelectionCase c(3, encoder_rows(make_short_batch()), 1);
  ThreadPool pool(2);
  Tape<float> tape(pool, Tape<float>::Mode::kTraining);
  CandidateBlocks blocks;
  const auto select = [&](double share, uint64_t seed) {
    return select_entries(tape, c.inputs(), c.rows, c.entries, {.topk = 8, .exploration = share, .seed = seed}, blocks);
  };
  const SelectedEntries<float> plain = select(0, 1);
  const SelectedEntries<float> drawn = select(0.5, 1);
  const SelectedEntries<float> again = select(0.5, 1);
  const SelectedEntries<float> other = select(0.5, 2);
  size_t differing = 0;
  for_each_row(c.rows, [&](size_t s, size_t row) {
    const size_t visible = c.entries.visible(row - c.rows.samples[s].begin);
    const std::vector<uint32_t> chosen = chosen_by(drawn, c.entries, s, row);
    const std::vector<uint32_t> base = chosen_by(plain, c.entries, s, row);
    EXPECT_EQ(chosen.size(), std::min<size_t>(8 + 4, visible));
    EXPECT_TRUE(std::adjacent_find(chosen.begin(), chosen.end(), std::greater_equal<>()) == chosen.end());
    EXPECT_LT(chosen.back(), visible);
    EXPECT_TRUE(std::ranges::includes(chosen, base));
    EXPECT_EQ(chosen_by(again, c.entries, s, row), chosen);
    differing += chosen_by(other, c.entries, s, row) != chosen ? 1 : 0;
  });
  EXPECT_GT(differing, 100U);  // of some 220 rows that leave something out
}

/// As in the step of a run that a NaN ends, which it does behind the pass.
TEST(IndexSelection, ScoresThatAreNoNumbersAreNotChosen) {
  SelectionCase c(6, encoder_rows(make_long_batch()), entry_rows(make_long_batch(), 1));
  // Every third entry's product with head 0 is infinite, and that times its weight no number.
  for (size_t row = 0; row < c.rows.rows; ++row) {
    c.q.value().data.at(row, 0) = 1;
    c.weights.value().data.at(row, 0) = row % 80 == 40 ? std::numeric_limits<float>::quiet_NaN() : 0;
    for (size_t head = 1; head < kSelectionHeads; ++head)
      c.q.value().data.at(row, head * kSelectionWidth) = -1;
  }
  for (size_t entry = 0; entry < c.entries.rows; entry += 3)
    c.keys.value().data.at(entry, 0) = std::numeric_limits<float>::infinity();
  ThreadPool pool(2);
  Tape<float> tape(pool, Tape<float>::Mode::kTraining);
  CandidateBlocks blocks;
  const SelectedEntries<float> selection = select_entries(tape, c.inputs(), c.rows, c.entries, {.topk = 20}, blocks);
  for (size_t row = 100; row < c.rows.rows; row += 20) {
    const std::vector<float> scores = c.engine_scores(0, row);
    const std::vector<uint32_t> chosen = chosen_by(selection, c.entries, 0, row);
    EXPECT_EQ(chosen, engine_choice(scores, 20)) << row;
    EXPECT_EQ(chosen.empty(), row % 80 == 40) << row;
  }
}

}  // namespace
}  // namespace tidepool
