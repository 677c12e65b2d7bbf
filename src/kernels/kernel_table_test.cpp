#include "kernels/kernel_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace tidepool::kernels {
namespace {

TEST(KernelTable, TheReferenceRunsEverywhereAndComesLast) {
  ASSERT_FALSE(available_kernels().empty());
  EXPECT_EQ(available_kernels().back(), &reference_kernels());
  EXPECT_EQ(reference_kernels().name, "reference");
}

TEST(KernelTable, EveryTableIsFoundByItsNameAndAutoIsTheFirst) {
  for (const KernelTable* table : available_kernels())
    EXPECT_EQ(&select_kernels(table->name), table);
  EXPECT_EQ(&select_kernels("auto"), available_kernels().front());
}

TEST(KernelTable, AnUnknownNameIsRefusedWithTheChoices) {
  try {
    (void)select_kernels("avx1024");
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), ::testing::AllOf(::testing::HasSubstr("avx1024"), ::testing::HasSubstr("reference"),
                                               ::testing::HasSubstr("auto")));
  }
}

TEST(KernelTable, NoEntryIsMissing) {
  for (const KernelTable* table : available_kernels()) {
    SCOPED_TRACE(table->name);
    for (const auto entry : {table->linear_fp8, table->linear_fp4, table->linear_bf16, table->linear_f32}) {
      EXPECT_NE(entry, nullptr);
    }
    EXPECT_NE(table->sparse_attention, nullptr);
    EXPECT_NE(table->index_scores, nullptr);
    EXPECT_NE(table->rms_norm, nullptr);
    EXPECT_NE(table->quantise_fp8, nullptr);
    EXPECT_NE(table->round_bf16, nullptr);
    EXPECT_NE(table->rope, nullptr);
    EXPECT_NE(table->swiglu, nullptr);
    EXPECT_NE(table->softmax_terms, nullptr);
    EXPECT_NE(table->collect_above, nullptr);
    EXPECT_NE(table->add, nullptr);
    EXPECT_NE(table->hc_collapse, nullptr);
    EXPECT_NE(table->hc_expand, nullptr);
  }
}

}  // namespace
}  // namespace tidepool::kernels
