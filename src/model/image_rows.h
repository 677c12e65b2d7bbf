#pragma once

#include <cstdint>
#include <span>

#include "base/span2d.h"

namespace tidepool {

/// Embeddings of consecutive image positions of one sequence. They stand in place of the embedding table's.
struct ImageRows {
  int64_t begin = 0;         ///< position of the first row
  Span2d<const float> rows;  ///< [positions, hidden]
};

/// Where the embeddings of a sequence's image positions come from, when they are needed: before the forward call that
/// reads them, on the thread that may use the runtime, as they may have to be computed.
class ImageRowSource {
 public:
  ImageRowSource() = default;
  ImageRowSource(const ImageRowSource&) = delete;
  ImageRowSource& operator=(const ImageRowSource&) = delete;
  virtual ~ImageRowSource() = default;

  /// Rows that cover the image positions among [begin, end), in order; they may begin before and end behind. Valid
  /// until the next call. Throws Error.
  [[nodiscard]] virtual std::span<const ImageRows> rows(int64_t begin, int64_t end) = 0;
};

}  // namespace tidepool
