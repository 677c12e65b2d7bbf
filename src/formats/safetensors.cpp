#include "formats/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <set>

#include <simdjson.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"

namespace tidepool {
namespace {

using Entry = SafetensorsFile::Entry;
using Metadata = std::vector<std::pair<std::string, std::string>>;

constexpr uint64_t kLengthBytes = 8;
/// Neighbouring tensors are mapped together up to this size. A mapping per tensor would exceed the kernel's limit of
/// 65,530 for the released 96,085 tensors; one per file would need 101 GB of address space for the smallest tensor.
constexpr uint64_t kRegionBytes = uint64_t{1} << 30;

[[noreturn]] void throw_header(ErrorCode code, const std::string& origin, const std::string& what) {
  throw Error(code, fmt::format("{}: {}", origin, what));
}

[[noreturn]] void throw_tensor(ErrorCode code, const std::string& origin, std::string_view name,
                               const std::string& what) {
  throw Error(code, fmt::format("{}: tensor \"{}\": {}", origin, printable(name), what));
}

/// Reads the description of one tensor. `data_begin` is where the data section begins in the file, for alignment.
class EntryParser {
 public:
  EntryParser(const std::string& origin, uint64_t data_begin, uint64_t data_bytes)
      : origin_(origin), data_begin_(data_begin), data_bytes_(data_bytes) {}

  [[nodiscard]] Entry parse(std::string_view name, const simdjson::dom::element& element) {
    name_ = name;
    simdjson::dom::object object;
    if (element.get(object) != simdjson::SUCCESS) corrupt("is not described by a JSON object");
    Entry entry{.name = std::string(name), .dtype = Dtype::kU8, .shape = {}, .begin = 0, .bytes = 0};
    size_t dtypes = 0;
    size_t shapes = 0;
    size_t offsets = 0;
    for (const auto& [key, value] : object) {
      if (key == "dtype") {
        entry.dtype = read_dtype(value);
        ++dtypes;
      } else if (key == "shape") {
        read_shape(value, entry);
        ++shapes;
      } else if (key == "data_offsets") {
        read_offsets(value, entry);
        ++offsets;
      } else {
        corrupt(fmt::format("has an unknown key \"{}\"", printable(key)));
      }
    }
    if (dtypes != 1 || shapes != 1 || offsets != 1) corrupt("needs dtype, shape and data_offsets, each once");
    check_size(entry);
    return entry;
  }

 private:
  [[noreturn]] void corrupt(const std::string& what) const { throw_tensor(ErrorCode::kCorrupt, origin_, name_, what); }

  [[nodiscard]] Dtype read_dtype(const simdjson::dom::element& value) const {
    std::string_view text;
    if (value.get(text) != simdjson::SUCCESS) corrupt("dtype is not a string");
    const std::optional<Dtype> dtype = parse_dtype(text);
    if (!dtype) {
      throw_tensor(ErrorCode::kUnsupported, origin_, name_,
                   fmt::format("dtype \"{}\" is not read; known are BOOL, U8, I8, I32, I64, U64, BF16, F16, F32, F64, "
                               "F8_E4M3, F8_E8M0",
                               printable(text)));
    }
    return *dtype;
  }

  void read_shape(const simdjson::dom::element& value, Entry& entry) const {
    simdjson::dom::array array;
    if (value.get(array) != simdjson::SUCCESS) corrupt("shape is not an array");
    for (const simdjson::dom::element item : array) {
      int64_t size = 0;
      if (item.get(size) != simdjson::SUCCESS || size < 0) corrupt("shape has something other than sizes");
      entry.shape.push_back(size);
    }
  }

  void read_offsets(const simdjson::dom::element& value, Entry& entry) const {
    simdjson::dom::array array;
    std::vector<uint64_t> numbers;
    if (value.get(array) != simdjson::SUCCESS) corrupt("data_offsets is not an array");
    for (const simdjson::dom::element item : array) {
      uint64_t number = 0;
      if (item.get(number) != simdjson::SUCCESS) corrupt("data_offsets are not two unsigned 64-bit integers");
      numbers.push_back(number);
    }
    if (numbers.size() != 2) corrupt("data_offsets are not two unsigned 64-bit integers");
    if (numbers[0] > numbers[1]) corrupt(fmt::format("data_offsets [{}, {}] run backwards", numbers[0], numbers[1]));
    if (numbers[1] > data_bytes_) {
      corrupt(fmt::format("ends at byte {} of the data, but the file has {}; it is cut off or still downloading",
                          numbers[1], data_bytes_));
    }
    entry.begin = numbers[0];
    entry.bytes = numbers[1] - numbers[0];
  }

  void check_size(const Entry& entry) const {
    const std::optional<uint64_t> bytes = tensor_bytes(entry.dtype, entry.shape);
    if (!bytes) corrupt(fmt::format("shape [{}] is too large", fmt::join(entry.shape, ", ")));
    if (*bytes != entry.bytes) {
      corrupt(fmt::format("shape [{}] of {} takes {} bytes, but data_offsets span {}", fmt::join(entry.shape, ", "),
                          dtype_name(entry.dtype), *bytes, entry.bytes));
    }
    if ((data_begin_ + entry.begin) % dtype_bytes(entry.dtype) != 0) {
      throw_tensor(ErrorCode::kUnsupported, origin_, name_,
                   fmt::format("its data begins at byte {} of the file, not on a multiple of {}; write the file again "
                               "with a current safetensors library, which aligns",
                               data_begin_ + entry.begin, dtype_bytes(entry.dtype)));
    }
  }

  const std::string& origin_;
  uint64_t data_begin_;
  uint64_t data_bytes_;
  std::string_view name_;
};

Metadata parse_metadata(const simdjson::dom::element& element, const std::string& origin) {
  simdjson::dom::object object;
  if (element.get(object) != simdjson::SUCCESS) {
    throw_header(ErrorCode::kCorrupt, origin, "__metadata__ is not a JSON object");
  }
  Metadata metadata;
  for (const auto& [key, value] : object) {
    std::string_view text;
    if (value.get(text) != simdjson::SUCCESS) {
      throw_header(ErrorCode::kCorrupt, origin,
                   fmt::format("__metadata__: the value of \"{}\" is not a string", printable(key)));
    }
    metadata.emplace_back(key, text);
  }
  return metadata;
}

/// The format wants the data section covered exactly: no overlap, no hole, nothing behind the last tensor.
void check_layout(const std::vector<Entry>& entries, uint64_t data_bytes, const std::string& origin) {
  std::vector<const Entry*> order;
  order.reserve(entries.size());
  for (const Entry& entry : entries)
    order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
    return std::pair(a->begin, a->bytes) < std::pair(b->begin, b->bytes);
  });
  uint64_t end = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const Entry& entry = *order[i];
    if (entry.begin < end) {
      throw_tensor(ErrorCode::kCorrupt, origin, entry.name,
                   fmt::format("begins at byte {} of the data, inside tensor \"{}\", which ends at {}", entry.begin,
                               printable(order[i - 1]->name), end));
    }
    if (entry.begin > end) {
      throw_tensor(ErrorCode::kCorrupt, origin, entry.name,
                   fmt::format("begins at byte {} of the data, which leaves a hole from {} on", entry.begin, end));
    }
    end = entry.begin + entry.bytes;
  }
  if (end != data_bytes) {
    throw_header(ErrorCode::kCorrupt, origin,
                 fmt::format("the tensors end at byte {} of the data, but the file goes on to {}", end, data_bytes));
  }
}

void sort_by_name(std::vector<Entry>& entries, const std::string& origin) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.name < b.name; });
  const auto twin = std::adjacent_find(entries.begin(), entries.end(),
                                       [](const Entry& a, const Entry& b) { return a.name == b.name; });
  if (twin != entries.end()) throw_tensor(ErrorCode::kCorrupt, origin, twin->name, "is there twice");
}

}  // namespace

std::vector<Entry> parse_safetensors_header(std::string_view header, uint64_t data_bytes, const std::string& origin,
                                            Metadata* metadata) {
  if (header.empty() || header.front() != '{') {
    throw_header(ErrorCode::kCorrupt, origin, "the header does not begin with '{': not a safetensors file");
  }
  simdjson::dom::parser parser;
  simdjson::dom::object object;
  const simdjson::error_code error = parser.parse(header.data(), header.size()).get(object);
  if (error != simdjson::SUCCESS) {
    throw_header(ErrorCode::kCorrupt, origin,
                 fmt::format("the header is not a JSON object: {}", simdjson::error_message(error)));
  }
  std::vector<Entry> entries;
  entries.reserve(object.size());
  EntryParser entry_parser(origin, kLengthBytes + header.size(), data_bytes);
  bool has_metadata = false;
  for (const auto& [key, value] : object) {
    if (key != "__metadata__") {
      entries.push_back(entry_parser.parse(key, value));
      continue;
    }
    if (std::exchange(has_metadata, true)) throw_header(ErrorCode::kCorrupt, origin, "__metadata__ is there twice");
    Metadata pairs = parse_metadata(value, origin);
    if (metadata != nullptr) *metadata = std::move(pairs);
  }
  // Names first: of twins, "is there twice" says more than the overlap or hole they also make.
  sort_by_name(entries, origin);
  check_layout(entries, data_bytes, origin);
  return entries;
}

struct SafetensorsFile::Impl {
  /// Tensors that lie one after the other and are mapped together.
  struct Region {
    uint64_t begin = 0;  // in the data section
    uint64_t bytes = 0;
    MappedFile mapping;  // guarded by `mutex`; set once
  };

  std::filesystem::path path;
  std::unique_ptr<File> file;
  uint64_t data_begin = 0;
  std::vector<Entry> entries;
  Metadata metadata;

  std::mutex mutex;
  std::vector<Region> regions;  // by `begin`; the list itself does not change after opening

  void make_regions() {
    std::vector<std::pair<uint64_t, uint64_t>> ranges;
    ranges.reserve(entries.size());
    for (const Entry& entry : entries) {
      if (entry.bytes != 0) ranges.emplace_back(entry.begin, entry.bytes);
    }
    std::sort(ranges.begin(), ranges.end());
    for (const auto& [begin, bytes] : ranges) {
      if (regions.empty() || regions.back().bytes + bytes > kRegionBytes) regions.push_back({begin, 0, {}});
      regions.back().bytes += bytes;
    }
  }

  /// The mapping that holds the entry, and where in it the entry begins.
  std::pair<const MappedFile*, size_t> mapping_of(const Entry& entry) {
    const auto after = std::upper_bound(regions.begin(), regions.end(), entry.begin,
                                        [](uint64_t begin, const Region& region) { return begin < region.begin; });
    TIDEPOOL_CHECK(after != regions.begin(), "an entry of another file");
    Region& region = *(after - 1);
    const uint64_t inside = entry.begin - region.begin;
    TIDEPOOL_CHECK(inside <= region.bytes && entry.bytes <= region.bytes - inside, "an entry of another file");
    const std::lock_guard lock(mutex);
    if (region.mapping.bytes().empty()) region.mapping = MappedFile(*file, data_begin + region.begin, region.bytes);
    return {&region.mapping, static_cast<size_t>(inside)};
  }
};

SafetensorsFile::SafetensorsFile(std::filesystem::path path) : impl_(std::make_unique<Impl>()) {
  const std::string origin = path.string();
  impl_->file = real_file_system().open(path, FileSystem::Mode::kRead);
  impl_->path = std::move(path);
  const uint64_t size = impl_->file->size();
  if (size < kLengthBytes) {
    throw_header(ErrorCode::kCorrupt, origin, fmt::format("only {} bytes, too short for a safetensors file", size));
  }
  std::array<std::byte, kLengthBytes> length_bytes{};
  impl_->file->read_exactly(0, length_bytes);
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < kLengthBytes; ++i)
    header_bytes |= static_cast<uint64_t>(length_bytes[i]) << (8 * i);
  if (header_bytes > kSafetensorsHeaderBytesMax) {
    throw_header(ErrorCode::kCorrupt, origin,
                 fmt::format("header of {} bytes; the format allows {}: not a safetensors file, or damaged",
                             header_bytes, kSafetensorsHeaderBytesMax));
  }
  if (header_bytes > size - kLengthBytes) {
    throw_header(ErrorCode::kCorrupt, origin,
                 fmt::format("header of {} bytes, but the file has only {} after its length; it is cut off or still "
                             "downloading",
                             header_bytes, size - kLengthBytes));
  }
  std::string header(static_cast<size_t>(header_bytes), '\0');
  impl_->file->read_exactly(kLengthBytes, std::as_writable_bytes(std::span(header)));
  impl_->data_begin = kLengthBytes + header_bytes;
  impl_->entries = parse_safetensors_header(header, size - impl_->data_begin, origin, &impl_->metadata);
  impl_->make_regions();
}

SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

const std::filesystem::path& SafetensorsFile::path() const {
  return impl_->path;
}

std::span<const Entry> SafetensorsFile::entries() const {
  return impl_->entries;
}

const Entry* SafetensorsFile::find(std::string_view name) const {
  const auto found = std::lower_bound(impl_->entries.begin(), impl_->entries.end(), name,
                                      [](const Entry& entry, std::string_view key) { return entry.name < key; });
  return found != impl_->entries.end() && found->name == name ? &*found : nullptr;
}

std::span<const std::pair<std::string, std::string>> SafetensorsFile::metadata() const {
  return impl_->metadata;
}

TensorView SafetensorsFile::tensor(std::string_view name) const {
  const Entry* entry = find(name);
  if (entry == nullptr) throw_tensor(ErrorCode::kNotFound, impl_->path.string(), name, "is not in this file");
  return tensor(*entry);
}

TensorView SafetensorsFile::tensor(const Entry& entry) const {
  TensorView view{.dtype = entry.dtype, .shape = entry.shape, .data = nullptr, .bytes = 0};
  if (entry.bytes == 0) return view;
  const auto [mapping, offset] = impl_->mapping_of(entry);
  view.data = mapping->bytes().data() + offset;
  view.bytes = static_cast<size_t>(entry.bytes);
  return view;
}

void SafetensorsFile::read(const Entry& entry, uint64_t offset, std::span<std::byte> out) const {
  TIDEPOOL_CHECK(offset <= entry.bytes && out.size() <= entry.bytes - offset, "read outside the tensor");
  impl_->file->read_exactly(impl_->data_begin + entry.begin + offset, out);
}

void SafetensorsFile::advise(const Entry& entry, MappedFile::Access access) const {
  if (entry.bytes == 0) return;
  const auto [mapping, offset] = impl_->mapping_of(entry);
  mapping->advise(access, offset, static_cast<size_t>(entry.bytes));
}

std::string make_safetensors_header(std::span<const TensorToWrite> tensors,
                                    std::span<const std::pair<std::string, std::string>> metadata) {
  // One line per tensor, put together by hand: an ordered JSON object is quadratic in its keys.
  const auto quoted = [](const std::string& text) {
    try {
      return nlohmann::ordered_json(text).dump();
    } catch (const nlohmann::ordered_json::exception&) {
      throw Error(ErrorCode::kInvalidArgument, "a tensor or metadata name is not UTF-8: " + printable(text));
    }
  };
  std::string header = "{";
  if (!metadata.empty()) {
    std::vector<std::string> pairs;
    for (const auto& [key, value] : metadata)
      pairs.push_back(quoted(key) + ":" + quoted(value));
    header += fmt::format("\"__metadata__\":{{{}}}", fmt::join(pairs, ","));
  }
  uint64_t begin = 0;
  std::set<std::string_view> names;
  for (const TensorToWrite& tensor : tensors) {
    TIDEPOOL_CHECK(names.insert(tensor.name).second, "two tensors of one name");
    const std::optional<uint64_t> bytes = tensor_bytes(tensor.dtype, tensor.shape);
    TIDEPOOL_CHECK(bytes && checked_add(begin, *bytes), "a tensor too large to write");
    if (header.size() > 1) header += ',';
    header += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", quoted(tensor.name),
                          dtype_name(tensor.dtype), fmt::join(tensor.shape, ","), begin, begin + *bytes);
    begin += *bytes;
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string result(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i)
    result[i] = static_cast<char>(header.size() >> (8 * i) & 0xffu);
  return result + header;
}

void write_safetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
                       std::span<const std::pair<std::string, std::string>> metadata) {
  std::vector<TensorToWrite> sorted(tensors.begin(), tensors.end());
  std::sort(sorted.begin(), sorted.end(), [](const TensorToWrite& a, const TensorToWrite& b) {
    return dtype_bytes(a.dtype) != dtype_bytes(b.dtype) ? dtype_bytes(a.dtype) > dtype_bytes(b.dtype) : a.name < b.name;
  });
  for (const TensorToWrite& tensor : sorted) {
    TIDEPOOL_CHECK(tensor_bytes(tensor.dtype, tensor.shape) == tensor.data.size(), "data and shape disagree");
  }
  AtomicFile file(path);
  file.write(make_safetensors_header(sorted, metadata));
  for (const TensorToWrite& tensor : sorted)
    file.write(tensor.data);
  file.commit();
}

}  // namespace tidepool
