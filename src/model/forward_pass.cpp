#include "model/forward_pass.h"

#include <algorithm>

#include "base/check.h"

namespace tidepool {

HyperConnectionMix make_mix(Arena& arena, size_t rows, size_t n) {
  return {arena.matrix(rows, n), arena.matrix(rows, n), arena.matrix(rows, n * n)};
}

ForwardPass make_pass(Arena& arena, std::vector<PassSegment> segments, const PassShape& shape,
                      const RopeTables& ropes) {
  ForwardPass pass;
  pass.arena = &arena;
  for (size_t i = 0; i < segments.size(); ++i) {
    segments[i].row_begin = pass.rows;
    pass.rows += segments[i].rows;
    pass.segment_of_row.insert(pass.segment_of_row.end(), segments[i].rows, i);
  }
  pass.segments = std::move(segments);
  pass.stream = arena.matrix(pass.rows, shape.streams * shape.hidden);
  pass.pre_mix = arena.matrix(pass.rows, shape.streams);
  pass.output = {arena.matrix(pass.rows, shape.hidden), make_mix(arena, pass.rows, shape.streams)};
  pass.selection.entries = {arena.take<uint32_t>(pass.rows * shape.index_topk).data(), pass.rows, shape.index_topk};
  pass.selection.count = arena.take<int32_t>(pass.rows);
  pass.candidates.blocks = {arena.take<uint32_t>(pass.rows * shape.candidate_blocks).data(), pass.rows,
                            shape.candidate_blocks};
  pass.candidates.count = arena.take<int32_t>(pass.rows);
  std::ranges::fill(pass.selection.count, 0);
  std::ranges::fill(pass.candidates.count, -1);

  pass.window_cos = arena.matrix(pass.rows, ropes.window.pairs());
  pass.window_sin = arena.matrix(pass.rows, ropes.window.pairs());
  pass.global_cos = arena.matrix(pass.rows, ropes.global.pairs());
  pass.global_sin = arena.matrix(pass.rows, ropes.global.pairs());
  for (size_t row = 0; row < pass.rows; ++row) {
    const int64_t position = pass.position(row);
    ropes.window.angles(position, pass.window_cos.row(row), pass.window_sin.row(row));
    ropes.global.angles(position, pass.global_cos.row(row), pass.global_sin.row(row));
  }
  return pass;
}

ForwardPass narrow_pass(const ForwardPass& pass, std::span<const int64_t> from, const PassShape& shape,
                        const RopeTables& ropes) {
  TIDEPOOL_CHECK(from.size() == pass.segments.size(), "one bound for each segment");
  TIDEPOOL_CHECK(!pass.lacks_output, "streams are settled before some of them go on");
  std::vector<PassSegment> segments;
  std::vector<size_t> kept_rows;
  for (size_t i = 0; i < pass.segments.size(); ++i) {
    const PassSegment& old = pass.segments[i];
    const auto skipped =
        static_cast<size_t>(std::clamp(from[i] - old.position, int64_t{0}, static_cast<int64_t>(old.rows)));
    if (skipped == old.rows) continue;
    segments.push_back({old.state, 0, old.rows - skipped, old.position + static_cast<int64_t>(skipped)});
    for (size_t row = skipped; row < old.rows; ++row)
      kept_rows.push_back(old.row_begin + row);
  }
  ForwardPass result = make_pass(*pass.arena, std::move(segments), shape, ropes);
  result.probe = pass.probe;
  if (pass.taps.rows > 0) result.taps = pass.arena->matrix(result.rows, pass.taps.cols);
  for (size_t row = 0; row < kept_rows.size(); ++row) {
    if (pass.taps.rows > 0) std::ranges::copy(pass.taps.row(kept_rows[row]), result.taps.row(row).begin());
    std::ranges::copy(pass.stream.row(kept_rows[row]), result.stream.row(row).begin());
    std::ranges::copy(pass.pre_mix.row(kept_rows[row]), result.pre_mix.row(row).begin());
  }
  return result;
}

}  // namespace tidepool
