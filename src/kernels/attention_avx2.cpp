#include "kernels/kernel_table_internal.h"
#include "kernels/vec_avx2.h"
// After the Vec it is written in.
#include "kernels/attention_vector.h"

namespace tidepool::kernels::avx2 {

void sparse_attention(const AttentionArgs& args) noexcept {
  sparse_attention_rows(args);
}
void index_scores(const IndexScoreArgs& args) noexcept {
  index_scores_rows(args);
}

}  // namespace tidepool::kernels::avx2
