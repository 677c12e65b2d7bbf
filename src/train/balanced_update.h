#pragma once

#include "base/span2d.h"
#include "base/thread_pool.h"

namespace tidepool {

/// The update of embedding, head and Engram tables, in place of the momentum: rows whose norm is at most 1e-3 of the
/// mean become zero, then the others and the columns are brought to unit norm in turn, 11 times, rows first and last;
/// then all is scaled so that the RMS of each row is 1. (arXiv 2609.19969, "Sinkhorn-balanced momentum")
void balance_rows_and_columns(ThreadPool& pool, Span2d<float> update);

}  // namespace tidepool
