#include "formats/tensor.h"

#include <array>
#include <limits>

#include "base/check.h"
#include "base/checked.h"

namespace tidepool {
namespace {

struct DtypeRow {
  Dtype dtype;
  std::string_view name;
  size_t bytes;
};

constexpr std::array<DtypeRow, 12> kDtypes = {{
    {Dtype::kBool, "BOOL", 1},
    {Dtype::kU8, "U8", 1},
    {Dtype::kI8, "I8", 1},
    {Dtype::kI32, "I32", 4},
    {Dtype::kI64, "I64", 8},
    {Dtype::kU64, "U64", 8},
    {Dtype::kBf16, "BF16", 2},
    {Dtype::kF16, "F16", 2},
    {Dtype::kF32, "F32", 4},
    {Dtype::kF64, "F64", 8},
    {Dtype::kF8E4m3, "F8_E4M3", 1},
    {Dtype::kF8E8m0, "F8_E8M0", 1},
}};

const DtypeRow& row_of(Dtype dtype) {
  const auto index = static_cast<size_t>(dtype);
  TIDEPOOL_CHECK(index < kDtypes.size() && kDtypes[index].dtype == dtype, "not a dtype");
  return kDtypes[index];
}

}  // namespace

std::string_view dtype_name(Dtype dtype) {
  return row_of(dtype).name;
}

size_t dtype_bytes(Dtype dtype) {
  return row_of(dtype).bytes;
}

std::optional<Dtype> parse_dtype(std::string_view name) {
  for (const DtypeRow& row : kDtypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

std::optional<uint64_t> tensor_bytes(Dtype dtype, const std::vector<int64_t>& shape) {
  std::optional<uint64_t> bytes = dtype_bytes(dtype);
  bool is_empty = false;
  for (const int64_t size : shape) {
    if (size < 0) return std::nullopt;
    if (size == 0) is_empty = true;
    // A zero among the dimensions must not hide that the others overflow.
    if (size > 0 && bytes) bytes = checked_mul(*bytes, static_cast<uint64_t>(size));
  }
  if (!bytes || *bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return is_empty ? 0 : *bytes;
}

}  // namespace tidepool
