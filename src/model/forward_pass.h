#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/arena.h"
#include "base/span2d.h"
#include "kv/sequence_state.h"
#include "model/image_rows.h"
#include "model/math.h"
#include "model/probe.h"
#include "model/rope.h"

namespace tidepool {

/// A run of consecutive positions of one sequence among the rows of a pass.
struct PassSegment {
  SequenceState* state = nullptr;
  size_t row_begin = 0;
  size_t rows = 0;
  int64_t position = 0;  ///< of the first row
  /// Embeddings of its image positions, in order; needed until the rows are embedded.
  std::span<const ImageRows> images{};
};

/// The global entries each row attends to, ascending. Written by Full and Reindex layers, read by Reuse layers.
struct Selection {
  Span2d<uint32_t> entries;  ///< [rows, index_topk]
  std::span<int32_t> count;  ///< [rows]
};

/// The blocks of entries each row may choose from, ascending; count -1 means all. (docs/model.md 2.5)
struct CandidatePool {
  Span2d<uint32_t> blocks;   ///< [rows, candidate_topk_blocks]
  std::span<int32_t> count;  ///< [rows]
};

/// The mix of one sub-block between n residual streams, all binary32. (hyper_connection.h)
struct HyperConnectionMix {
  Span2d<float> pre;   ///< [rows, n]: A, for the NEXT sub-block
  Span2d<float> post;  ///< [rows, n]: C
  Span2d<float> comb;  ///< [rows, n * n]: B, row-major; stream j goes to stream k with comb[j][k]
};

/// Memory for the mixes of all rows between n streams.
[[nodiscard]] HyperConnectionMix make_mix(Arena& arena, size_t rows, size_t n);

/// What a sub-block computed, and how the streams get it.
struct SubBlockOutput {
  Span2d<float> y;  ///< [rows, hidden]
  HyperConnectionMix mix;
};

/// What crosses layers while some rows pass through the stack, for any number of sequences at once. Rows of one
/// sequence are consecutive and in order. All memory is borrowed from `arena`.
struct ForwardPass {
  Arena* arena = nullptr;
  Probe* probe = nullptr;  ///< only with a single segment
  std::vector<PassSegment> segments;
  std::vector<size_t> segment_of_row;
  size_t rows = 0;

  Span2d<float> stream;   ///< [rows, hc_mult * hidden]: the residual streams, one after the other
  Span2d<float> pre_mix;  ///< [rows, hc_mult]: what the next sub-block collapses with (it lags by one)
  /// Of the last sub-block. While the streams (and pre_mix) lack it, the next sub-block adds it on its way in, so that
  /// the streams are read once; whoever else reads them calls settle_streams() before.
  SubBlockOutput output;
  bool lacks_output = false;
  Selection selection;
  CandidatePool candidates;
  /// What a draft head reads of the layers it taps: the mean of the streams entering each, [rows, taps * hidden]. Empty
  /// where nothing taps.
  Span2d<float> taps;

  /// Angles of each row's position, [rows, pairs].
  Span2d<float> window_cos, window_sin, global_cos, global_sin;

  [[nodiscard]] const PassSegment& segment(size_t row) const { return segments[segment_of_row[row]]; }
  [[nodiscard]] int64_t position(size_t row) const {
    const PassSegment& s = segment(row);
    return s.position + static_cast<int64_t>(row - s.row_begin);
  }
  [[nodiscard]] InputToken token(size_t row) const {
    return segment(row).state->tokens()[static_cast<size_t>(position(row))];
  }

  /// Hands rows to the probe, if there is one. `values` has a row for each row of the pass.
  void record(std::string_view name, size_t layer, Span2d<const float> values) const {
    if (probe != nullptr) probe->record(name, static_cast<int64_t>(layer), segments.front().position, values);
  }
};

/// Sizes of a pass that follow from the config.
struct PassShape {
  size_t streams = 0;           ///< residual streams of a row
  size_t hidden = 0;            ///< width of a stream
  size_t index_topk = 0;        ///< global entries a row attends to, at most
  size_t candidate_blocks = 0;  ///< blocks of a row's candidate pool, at most
};

/// Lays out a pass over `segments` (row_begin is filled in) with everything but the stream's content.
[[nodiscard]] ForwardPass make_pass(Arena& arena, std::vector<PassSegment> segments, const PassShape& shape,
                                    const RopeTables& ropes);

/// The pass that goes on with the rows of a settled one whose position is at least `from[segment]`; segments without
/// such rows are dropped. Streams and mixes are copied; selections start empty.
[[nodiscard]] ForwardPass narrow_pass(const ForwardPass& pass, std::span<const int64_t> from, const PassShape& shape,
                                      const RopeTables& ropes);

}  // namespace tidepool
