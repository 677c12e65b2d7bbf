#include "base/faulty_file_system.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tidepool {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* what) {
  throw Error(ErrorCode::kIo, fmt::format("{}: {}", path.string(), what));
}

class FaultyFile final : public File {
 public:
  FaultyFile(std::unique_ptr<File> under, FaultyFileSystem& files) : under_(std::move(under)), files_(files) {}

  [[nodiscard]] const std::filesystem::path& path() const override { return under_->path(); }
  [[nodiscard]] uint64_t size() const override { return under_->size(); }
  [[nodiscard]] int descriptor() const override { return under_->descriptor(); }

  [[nodiscard]] size_t read_some(uint64_t offset, std::span<std::byte> out) const override {
    if (offset >= files_.plan.bad_offset) fail(path(), "cannot read: Input/output error");
    const uint64_t good = files_.plan.bad_offset - offset;
    const size_t count = std::min({out.size(), files_.plan.read_bytes_max, static_cast<size_t>(good)});
    return under_->read_some(offset, out.first(count));
  }

  [[nodiscard]] size_t write_some(uint64_t offset, std::span<const std::byte> bytes) override {
    const size_t count = files_.take_disk(std::min(bytes.size(), files_.plan.write_bytes_max));
    if (count == 0 && !bytes.empty()) fail(path(), "cannot write: No space left on device");
    return under_->write_some(offset, bytes.first(count));
  }

  void truncate(uint64_t size) override { under_->truncate(size); }

  void sync() override {
    if (files_.plan.sync_fails) fail(path(), "cannot sync: Input/output error");
    under_->sync();
  }

 private:
  std::unique_ptr<File> under_;
  FaultyFileSystem& files_;
};

}  // namespace

std::unique_ptr<File> FaultyFileSystem::open(const std::filesystem::path& path, Mode mode) {
  return std::make_unique<FaultyFile>(under_.open(path, mode), *this);
}

void FaultyFileSystem::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (plan.rename_fails) fail(from, "cannot rename: Input/output error");
  under_.rename(from, to);
}

void FaultyFileSystem::remove(const std::filesystem::path& path) {
  under_.remove(path);
}

void FaultyFileSystem::sync_folder(const std::filesystem::path& folder) {
  if (plan.sync_fails) fail(folder, "cannot sync: Input/output error");
  under_.sync_folder(folder);
}

size_t FaultyFileSystem::take_disk(size_t bytes) {
  // Relaxed: a counter that orders nothing else.
  uint64_t written = written_bytes_.load(std::memory_order_relaxed);
  while (true) {
    const uint64_t left = plan.disk_bytes > written ? plan.disk_bytes - written : 0;
    const auto taken = static_cast<size_t>(std::min<uint64_t>(bytes, left));
    if (written_bytes_.compare_exchange_weak(written, written + taken, std::memory_order_relaxed)) return taken;
  }
}

}  // namespace tidepool
