#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "formats/tensor.h"

namespace tidepool {

/// One .safetensors file: the header read and checked at once, the data mapped when a tensor is first asked for (about
/// a gigabyte around it, or just the tensor when it is larger), so opening a 101 GB shard costs its header.
/// Safe to share between threads. docs/formats.md says what is refused and why.
class SafetensorsFile {
 public:
  /// Throws Error (kNotFound, kIo, kCorrupt, kUnsupported) naming file and tensor.
  explicit SafetensorsFile(std::filesystem::path path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;
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
  /// The same for one of entries().
  [[nodiscard]] TensorView tensor(const Entry& entry) const;
  /// Copies `out.size()` bytes from `offset` of the tensor's data, without mapping. The range must lie inside.
  void read(const Entry& entry, uint64_t offset, std::span<std::byte> out) const;
  /// A hint on how the tensor's bytes will be touched. Maps it.
  void advise(const Entry& entry, MappedFile::Access access) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Longest header the format allows.
inline constexpr uint64_t kSafetensorsHeaderBytesMax = 100'000'000;

/// Checks a header by itself (what the fuzz target drives): `header` is the JSON text, `data_bytes` the size of what
/// follows. `origin` names the file in errors. The entries come back sorted by name.
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
/// The eight length bytes and the JSON header (padded with spaces to a multiple of 8) of a file that holds `tensors` in
/// this order, one directly after the other. Their `data` is not looked at. CHECKs that names are distinct.
[[nodiscard]] std::string make_safetensors_header(std::span<const TensorToWrite> tensors,
                                                  std::span<const std::pair<std::string, std::string>> metadata = {});
/// Writes one file, atomically (a temporary beside it, then rename): widest elements first, so that all lie aligned,
/// then by name. Throws Error(kIo); kInvalidArgument when a name is not UTF-8. CHECKs that data and shape agree.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
                       std::span<const std::pair<std::string, std::string>> metadata = {});

}  // namespace tidepool
