#include "model/math.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <random>

#include "base/error.h"
#include "kernels/kernel_table_internal.h"
#include "model/golden_test_support.h"

namespace tidepool {
namespace {

kernels::KernelTable bf16_table() {
  kernels::KernelTable table = kernels::reference_kernels();
  table.name = "tiles";
  table.needs_bf16_inputs = true;
  return table;
}

TEST(Math, KernelsThatCutTheirInputsAreRefusedUnderHp) {
  ThreadPool pool(1);
  const kernels::KernelTable table = bf16_table();
  EXPECT_NO_THROW(Math({pool, table}, kOfficialNumerics));
  EXPECT_NO_THROW(Math({pool, kernels::reference_kernels()}, kHpNumerics));
  try {
    const Math math({pool, table}, kHpNumerics);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("hp"), testing::HasSubstr("tiles")));
  }
}

/// Logits of every position, `chunk` tokens at a time.
std::vector<float> logits(const Model& model, const kernels::KernelTable& table, size_t count, size_t chunk) {
  ThreadPool pool(2);
  Arena arena;
  SequenceState state = model.new_sequence();
  const std::vector<InputToken> tokens = golden::random_tokens(count, 7);
  std::vector<float> result;
  for (size_t begin = 0; begin < count; begin += chunk) {
    const size_t rows = std::min(chunk, count - begin);
    const Arena::Scope scope(arena);
    const ForwardRequest request{&state, std::span(tokens).subspan(begin, rows), 0, rows};
    const Span2d<const float> part = forward(model, {pool, table}, arena, {&request, 1});
    result.insert(result.end(), part.data, part.data + part.rows * part.cols);
  }
  return result;
}

/// Linears that count inputs with bits below bfloat16's. (A kernel is a plain function, so the count is global.)
std::atomic<size_t> inputs_seen{0};
std::atomic<size_t> inputs_not_exact{0};
template <auto kEntry>
void counted(const kernels::LinearArgs& args) noexcept {
  for (size_t r = 0; r < args.rows; ++r) {
    for (size_t i = 0; i < args.weight.in; ++i)
      inputs_not_exact += (std::bit_cast<uint32_t>(args.x[r * args.x_stride + i]) & 0xffffU) != 0 ? 1 : 0;
    inputs_seen += args.weight.in;
  }
  (kernels::reference_kernels().*kEntry)(args);
}

/// What tables with needs_bf16_inputs rest on. Without the rounding points it is not so, which shows that the count
/// counts.
TEST(Math, TheOfficialNumericsGiveLinearsWhatBf16Holds) {
  kernels::KernelTable table = kernels::reference_kernels();
  table.linear_fp8 = counted<&kernels::KernelTable::linear_fp8>;
  table.linear_fp4 = counted<&kernels::KernelTable::linear_fp4>;
  table.linear_bf16 = counted<&kernels::KernelTable::linear_bf16>;
  const auto inexact_of = [&](const Numerics& numerics) {
    ModelOptions options;
    options.numerics = numerics;
    inputs_seen = 0;
    inputs_not_exact = 0;
    (void)logits(golden::load_model_from(golden::folder() / "ckpt", options), table, 20, 7);
    EXPECT_GT(inputs_seen, 0U);
    return inputs_not_exact.load();
  };
  EXPECT_EQ(inexact_of(kOfficialNumerics), 0U);
  EXPECT_GT(inexact_of(kHpNumerics), 0U);
}

/// A whole model on the tiles' code, or, without AVX-512, which that needs, on the best there is.
TEST(Math, AModelOnEmulatedTilesDoesNotDependOnTheChunk) {
  const kernels::KernelTable* tiles = kernels::emulated_amx_kernels();
  const kernels::KernelTable& table = tiles != nullptr ? *tiles : kernels::select_kernels("auto");
  const Model model = golden::load_model("ckpt");
  const std::vector<float> whole = logits(model, table, 24, 24);
  EXPECT_EQ(logits(model, table, 24, 1), whole);
  EXPECT_EQ(logits(model, table, 24, 5), whole);
}

}  // namespace
}  // namespace tidepool
