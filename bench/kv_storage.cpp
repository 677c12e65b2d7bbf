#include "bench/kv_storage.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <new>
#include <random>
#include <string>
#include <system_error>

#include "base/error.h"
#include "bench/measure.h"
#include "formats/row_format.h"

namespace tidepool::bench {
namespace {

constexpr uint64_t kRawStep = uint64_t{1} << 20;
constexpr size_t kDirectAlignment = 4096;

/// A buffer for direct reads and writes.
class Page {
 public:
  explicit Page(size_t bytes)
      : bytes_(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kDirectAlignment}))) {}
  ~Page() { ::operator delete (bytes_, std::align_val_t{kDirectAlignment}); }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  [[nodiscard]] std::byte* get() const { return bytes_; }

 private:
  std::byte* bytes_;
};

[[noreturn]] void refuse(const std::filesystem::path& path, const char* what) {
  throw Error(ErrorCode::kIo,
              fmt::format("{}: cannot {}: {}", path.string(), what, std::generic_category().message(errno)));
}

void add_rows(std::mt19937& random, RowFormat format, size_t width, int64_t rows, std::span<std::byte> out) {
  std::normal_distribution<float> normal;
  std::vector<float> values(width);
  const size_t bytes = row_bytes(format, width);
  for (int64_t row = 0; row < rows; ++row) {
    const float size = std::exp(0.25F * normal(random));
    for (float& value : values)
      value = size * normal(random);
    pack_row(format, values, out.subspan(static_cast<size_t>(row) * bytes, bytes));
  }
}

/// The number behind `name` in a file of lines "name: number".
uint64_t read_counter(const char* path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name)) return std::stoull(line.substr(name.size() + 1));
  }
  return 0;
}

}  // namespace

std::shared_ptr<const KvLayout> released_layout() {
  KvLayout layout;
  for (const int64_t ratio : {2, 2, 2, 1})
    layout.sources.push_back({.ratio = ratio, .entry_width = 512, .key_width = 128});
  layout.window_layers = 40;
  layout.first_decoder_layer = 20;
  layout.window = 128;
  layout.window_width = 512;
  finish_kv_layout(layout);
  return std::make_shared<const KvLayout>(std::move(layout));
}

std::vector<std::shared_ptr<const KvBlock>> synthetic_blocks(const KvLayout& layout, size_t count) {
  std::mt19937 random(7);
  std::vector<std::shared_ptr<const KvBlock>> blocks;
  for (size_t i = 0; i < count; ++i) {
    KvBlock block(layout.block_bytes);
    for (const KvSource& source : layout.sources) {
      const int64_t rows = source.rows_per_block();
      add_rows(random, source.entry_format, source.entry_width, rows, block.span().subspan(source.entries_offset));
      add_rows(random, source.key_format, source.key_width, rows, block.span().subspan(source.keys_offset));
    }
    blocks.push_back(std::make_shared<const KvBlock>(std::move(block)));
  }
  return blocks;
}

uint64_t folder_bytes(const std::filesystem::path& folder) {
  uint64_t sum = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) sum += entry.file_size();
  }
  return sum;
}

void make_cold(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const int descriptor = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) refuse(entry.path(), "open");
    const bool is_done = ::fsync(descriptor) == 0 && ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED) == 0;
    ::close(descriptor);
    if (!is_done) refuse(entry.path(), "drop from the page cache");
  }
}

RawFile::RawFile(std::filesystem::path path, uint64_t bytes)
    : path_(std::move(path)), bytes_((bytes + kRawStep - 1) / kRawStep * kRawStep) {
  const int descriptor = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (descriptor < 0) refuse(path_, "make");
  std::mt19937_64 random(11);
  std::vector<uint64_t> step(kRawStep / sizeof(uint64_t));
  for (uint64_t at = 0; at < bytes_; at += kRawStep) {
    for (uint64_t& word : step)
      word = random();
    if (::write(descriptor, step.data(), kRawStep) != static_cast<ssize_t>(kRawStep)) {
      ::close(descriptor);
      refuse(path_, "write");
    }
  }
  ::fsync(descriptor);
  ::close(descriptor);
}

double RawFile::read_seconds() const {
  const int descriptor = ::open(path_.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (descriptor < 0) refuse(path_, "open past the page cache");
  const Page page(kRawStep);
  bool is_read = true;
  const double seconds = seconds_of([&] {
    for (uint64_t at = 0; at < bytes_ && is_read; at += kRawStep)
      is_read = ::pread(descriptor, page.get(), kRawStep, static_cast<off_t>(at)) == static_cast<ssize_t>(kRawStep);
  });
  ::close(descriptor);
  if (!is_read) refuse(path_, "read");
  return seconds;
}

uint64_t device_written_bytes() {
  return read_counter("/proc/self/io", "write_bytes:");
}

uint64_t resident_bytes() {
  return read_counter("/proc/self/status", "VmRSS:") * 1024;
}

}  // namespace tidepool::bench
