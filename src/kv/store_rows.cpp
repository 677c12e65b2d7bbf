#include "kv/store_rows.h"

#include <zstd.h>

#include <algorithm>
#include <cstring>

namespace tidepool::store {
namespace {

/// Codes have no repetitions to search for, only unequal frequencies: the fastest level finds all there is.
constexpr int kRowsZstdLevel = 1;
/// A table beyond this is damage.
constexpr uint32_t kRunsMax = 4096;
constexpr size_t kRunBytes = 8;

/// Sizes of a row: rows of one shape share two planes.
struct Shape {
  uint16_t row_bytes = 0;
  uint16_t code_bytes = 0;
  friend bool operator==(const Shape&, const Shape&) = default;
};

/// The planes of a payload: for each shape its codes, then its scales.
struct Planes {
  std::vector<Shape> shapes;
  std::vector<std::vector<std::byte>> bytes;

  [[nodiscard]] size_t of(const RowRun& run) const {
    const auto at = std::ranges::find(shapes, Shape{run.row_bytes, run.code_bytes});
    return 2 * static_cast<size_t>(at - shapes.begin());
  }
};

uint64_t payload_bytes(std::span<const RowRun> runs) {
  uint64_t sum = 0;
  for (const RowRun& run : runs)
    sum += uint64_t{run.rows} * run.row_bytes;
  return sum;
}

/// Planes of the right sizes for `runs`.
Planes make_planes(std::span<const RowRun> runs) {
  Planes planes;
  std::vector<size_t> sizes;
  for (const RowRun& run : runs) {
    size_t at = planes.of(run);
    if (at == sizes.size()) {
      planes.shapes.push_back({run.row_bytes, run.code_bytes});
      sizes.resize(sizes.size() + 2);
    }
    at = planes.of(run);
    sizes[at] += size_t{run.rows} * run.code_bytes;
    sizes[at + 1] += size_t{run.rows} * (run.row_bytes - run.code_bytes);
  }
  for (const size_t size : sizes)
    planes.bytes.emplace_back(size);
  return planes;
}

/// Calls `move(row, codes, scales)` for every row of a payload and its places in the planes.
template <typename Move>
void for_each_row(std::span<const RowRun> runs, Planes& planes, Move move) {
  std::vector<size_t> done(planes.bytes.size());
  size_t at = 0;
  for (const RowRun& run : runs) {
    const size_t plane = planes.of(run);
    const size_t scale_bytes = size_t{run.row_bytes} - run.code_bytes;
    for (uint32_t row = 0; row < run.rows; ++row, at += run.row_bytes) {
      move(at, std::span(planes.bytes[plane]).subspan(done[plane], run.code_bytes),
           std::span(planes.bytes[plane + 1]).subspan(done[plane + 1], scale_bytes));
      done[plane] += run.code_bytes;
      done[plane + 1] += scale_bytes;
    }
  }
}

/// Copies; spans may be empty and of no memory.
void copy(std::span<const std::byte> from, std::byte* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

void append(std::vector<std::byte>& out, const void* bytes, size_t count) {
  const auto* first = static_cast<const std::byte*>(bytes);
  out.insert(out.end(), first, first + count);
}

size_t code_bytes(RowFormat format, size_t width) {
  switch (format) {
    case RowFormat::kFp4Block16:
    case RowFormat::kFp4Block32: return width / 2;
    case RowFormat::kFp8Block32: return width;
    case RowFormat::kFloat32: return 0;
  }
  return 0;
}

/// Reads a number from the front of `bytes`, which become shorter; nothing when there are too few.
template <typename T>
std::optional<T> take(std::span<const std::byte>& bytes) {
  if (bytes.size() < sizeof(T)) return std::nullopt;
  T value{};
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes = bytes.subspan(sizeof value);
  return value;
}

std::optional<std::vector<RowRun>> take_runs(std::span<const std::byte>& bytes) {
  const std::optional<uint32_t> count = take<uint32_t>(bytes);
  if (!count || *count > kRunsMax || bytes.size() < *count * kRunBytes) return std::nullopt;
  std::vector<RowRun> runs(*count);
  for (RowRun& run : runs) {
    run = {.rows = *take<uint32_t>(bytes), .row_bytes = *take<uint16_t>(bytes), .code_bytes = *take<uint16_t>(bytes)};
    if (run.row_bytes == 0 || run.code_bytes > run.row_bytes) return std::nullopt;
  }
  return runs;
}

}  // namespace

std::vector<RowRun> rows_of(const KvLayout& layout) {
  std::vector<RowRun> runs;
  const auto add = [&](const KvSource& source, RowFormat format, size_t width, size_t bytes) {
    runs.push_back({.rows = static_cast<uint32_t>(source.rows_per_block()),
                    .row_bytes = static_cast<uint16_t>(bytes),
                    .code_bytes = static_cast<uint16_t>(code_bytes(format, width))});
    return bytes <= UINT16_MAX && runs.back().code_bytes > 0;
  };
  for (const KvSource& source : layout.sources) {
    const bool is_known = add(source, source.entry_format, source.entry_width, source.entry_bytes) &&
                          add(source, source.key_format, source.key_width, source.key_bytes);
    if (!is_known) return {};
  }
  return runs;
}

std::optional<std::vector<std::byte>> compress_rows(std::span<const std::byte> payload, std::span<const RowRun> runs) {
  if (runs.empty() || runs.size() > kRunsMax || payload_bytes(runs) != payload.size()) return std::nullopt;
  Planes planes = make_planes(runs);
  for_each_row(runs, planes, [&](size_t at, std::span<std::byte> codes, std::span<std::byte> scales) {
    copy(payload.subspan(at, codes.size()), codes.data());
    copy(payload.subspan(at + codes.size(), scales.size()), scales.data());
  });
  std::vector<std::byte> out;
  const auto count = static_cast<uint32_t>(runs.size());
  append(out, &count, sizeof count);
  for (const RowRun& run : runs) {
    append(out, &run.rows, sizeof run.rows);
    append(out, &run.row_bytes, sizeof run.row_bytes);
    append(out, &run.code_bytes, sizeof run.code_bytes);
  }
  for (const std::vector<std::byte>& plane : planes.bytes) {
    std::vector<std::byte> packed(ZSTD_compressBound(plane.size()));
    const size_t bytes = ZSTD_compress(packed.data(), packed.size(), plane.data(), plane.size(), kRowsZstdLevel);
    if (ZSTD_isError(bytes) != 0) return std::nullopt;
    const auto size = static_cast<uint32_t>(bytes);
    append(out, &size, sizeof size);
    append(out, packed.data(), bytes);
  }
  return out;
}

bool expand_rows(std::span<const std::byte> stored, std::span<std::byte> out) {
  const std::optional<std::vector<RowRun>> runs = take_runs(stored);
  if (!runs || payload_bytes(*runs) != out.size()) return false;
  Planes planes = make_planes(*runs);
  for (std::vector<std::byte>& plane : planes.bytes) {
    const std::optional<uint32_t> bytes = take<uint32_t>(stored);
    if (!bytes || *bytes > stored.size()) return false;
    if (ZSTD_decompress(plane.data(), plane.size(), stored.data(), *bytes) != plane.size()) return false;
    stored = stored.subspan(*bytes);
  }
  for_each_row(*runs, planes, [&](size_t at, std::span<std::byte> codes, std::span<std::byte> scales) {
    copy(codes, out.data() + at);
    copy(scales, out.data() + at + codes.size());
  });
  return stored.empty();
}

}  // namespace tidepool::store
