#include "train/engram.h"

#include <gtest/gtest.h>

#include "model/golden_test_support.h"
#include "train/gradient_check.h"

namespace tidepool {
namespace {

constexpr size_t kEngramStreams = 3;
constexpr size_t kEngramWidth = 5;
constexpr size_t kColumns = 2;
constexpr size_t kHeadDim = 4;
constexpr size_t kEngramRows = 6;

struct EngramCase {
  TestRandom random{2};
  Leaf<double> table{random, 10, kHeadDim};
  Leaf<double> wkv{random, (kEngramStreams + 1) * kEngramWidth, kColumns* kHeadDim};
  Leaf<double> q_weight{random, kEngramStreams, kEngramWidth};
  Leaf<double> k_weight{random, kEngramStreams, kEngramWidth};
  Leaf<double> stream{random, kEngramRows, kEngramStreams* kEngramWidth};
  Parameter<double> owned[4];
  EngramParameters<double> parameters{owned, owned + 1, owned + 2, owned + 3};
  // The first column's part of the table is rows 0 to 4, the second's 5 to 9; rows 2 and 7 are read twice, 9 never.
  EngramRows rows{{0, 5, 2, 7, 1, 6, 2, 8, 3, 7, 4, 5}, {0, 0, 1, 0, 0, 0}, kColumns};

  EngramCase() {
    Leaf<double>* const leaves[] = {&table, &wkv, &q_weight, &k_weight};
    for (size_t i = 0; i < 4; ++i)
      owned[i].value = leaves[i]->value();
  }
  Value<double> run(Tape<double>& tape) { return engram(tape, Qat{}, parameters, rows, stream.value(), 1e-6); }
};

TEST(TrainEngram, GradientsAreThoseOfFiniteDifferences) {
  EngramCase test;
  expect_gradients({.run = [&](Tape<double>& tape) { return std::vector{test.run(tape)}; },
                    .inputs = {{"table", test.table},
                               {"wkv", test.wkv},
                               {"q_weight", test.q_weight},
                               {"k_weight", test.k_weight},
                               {"stream", test.stream}},
                    .entries = 90,
                    .step = 1e-6,  // the root in the gate bends sharply near 0
                    .tolerance = 1e-6});
}

TEST(TrainEngram, OnlyRowsThatWereReadGetGradientsAndDeadRowsTakeNothing) {
  EngramCase test;
  ThreadPool pool(2);
  Tape<double> tape(pool, Tape<double>::Mode::kTraining);
  const Value<double> y = test.run(tape);
  EXPECT_TRUE(std::ranges::equal(y.data.row(2), test.stream.value().data.row(2)));
  EXPECT_FALSE(std::ranges::equal(y.data.row(1), test.stream.value().data.row(1)));
  for (size_t row = 0; row < kEngramRows; ++row)
    std::ranges::fill(y.grad.row(row), 1.0);
  tape.backward();
  const auto is_zero = [&](size_t row) {
    return std::ranges::all_of(test.table.value().grad.row(row), [](double value) { return value == 0; });
  };
  for (size_t row = 0; row < 10; ++row)
    EXPECT_EQ(is_zero(row), row == 9 || row == 1 || row == 6) << row;  // 1 and 6 are the dead row's
}

TEST(TrainEngram, EachSampleIsHashedByItsOwnTokensAsTheEngineDoes) {
  const Model model = golden::load_model("ckpt");
  const EngramHash& hash = *model.engram_hash();
  std::vector<InputToken> tokens;
  tokens.reserve(20);
  for (int32_t i = 0; i < 20; ++i)
    tokens.push_back({(i * 37) % 400, i == 15});
  const std::vector<SampleRows> samples = {{0, 8, 0}, {8, 12, 0}};
  const EngramRows rows = hash_rows(hash, 1, tokens, samples);
  ASSERT_EQ(rows.columns, hash.columns());
  std::vector<int64_t> expected(hash.columns());
  for (const SampleRows& sample : samples) {
    const std::vector<InputToken> own(tokens.begin() + static_cast<std::ptrdiff_t>(sample.begin),
                                      tokens.begin() + static_cast<std::ptrdiff_t>(sample.begin + sample.count));
    for (size_t i = 0; i < sample.count; ++i) {
      hash.rows(1, own, static_cast<int64_t>(i), expected);
      for (size_t c = 0; c < expected.size(); ++c)
        EXPECT_EQ(rows.table_rows[(sample.begin + i) * rows.columns + c], expected[c]);
    }
  }
  EXPECT_EQ(rows.is_dead[15], 1);
  EXPECT_EQ(rows.is_dead[14], 0);
}

}  // namespace
}  // namespace tidepool
