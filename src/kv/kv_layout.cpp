#include "kv/kv_layout.h"

#include "base/check.h"

namespace tidepool {

void finish_kv_layout(KvLayout& layout) {
  size_t offset = 0;
  for (KvSource& source : layout.sources) {
    TIDEPOOL_CHECK(source.ratio > 0 && kBlockTokens % source.ratio == 0, "a block holds whole groups");
    source.entry_bytes = row_bytes(source.entry_format, source.entry_width);
    source.key_bytes = row_bytes(source.key_format, source.key_width);
    const auto rows = static_cast<size_t>(source.rows_per_block());
    source.entries_offset = offset;
    source.keys_offset = offset + rows * source.entry_bytes;
    offset = source.keys_offset + rows * source.key_bytes;
  }
  layout.block_bytes = offset;
  layout.window_row_bytes = row_bytes(layout.window_format, layout.window_width);
}

}  // namespace tidepool
