#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/checkpoint.h"

namespace tidepool {

/// One .safetensors file: the header read and checked at once, the data mapped when a tensor is first asked for.
/// Safe to share between threads.
class SafetensorsFile {
 public:
  /// Throws Error (kNotFound, kIo, kCorrupt, kUnsupported) naming file and tensor.
  explicit SafetensorsFile(std::filesystem::path path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  struct Entry {
    std::string name;
    Dtype dtype;
    std::vector<int64_t> shape;
    uint64_t begin;  ///< from the start of the data section
    uint64_t bytes;
  };
  [[nodiscard]] const std::filesystem::path& path() const;
  [[nodiscard]] std::span<const Entry> entries() const;  ///< sorted by name
  [[nodiscard]] const Entry* find(std::string_view name) const;
  /// String pairs of "__metadata__", in file order.
  [[nodiscard]] std::span<const std::pair<std::string, std::string>> metadata() const;
  /// Throws Error(kNotFound) when there is none of that name.
  [[nodiscard]] TensorView tensor(std::string_view name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Checks a header by itself (what the fuzz target drives): `header` is the JSON text, `data_bytes` the size of what
/// follows. `origin` names the file in errors.
[[nodiscard]] std::vector<SafetensorsFile::Entry> parse_safetensors_header(
    std::string_view header, uint64_t data_bytes, const std::string& origin,
    std::vector<std::pair<std::string, std::string>>* metadata = nullptr);

/// A tensor to write; `data` is borrowed.
struct TensorToWrite {
  std::string name;
  Dtype dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};
/// Writes one file, atomically (a temporary beside it, then rename). Throws Error(kIo).
void write_safetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
                       std::span<const std::pair<std::string, std::string>> metadata = {});

}  // namespace tidepool
