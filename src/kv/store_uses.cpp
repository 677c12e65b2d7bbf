#include "kv/store_uses.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <array>
#include <cstring>

#include "base/error.h"
#include "kv/store_record.h"

namespace tidepool::store {
namespace {

/// Layout of a record: magic with version [8], key [32], time [8], written [8], checksum of what precedes [8].
constexpr std::array kMagic = {'T', 'K', 'V', 'U', '\1', '\0', '\0', '\0'};
constexpr size_t kKeyAt = 8;
constexpr size_t kTimeAt = 40;
constexpr size_t kWrittenAt = 48;
constexpr size_t kChecksumAt = 56;
constexpr size_t kChecksumBytes = 8;
static_assert(kChecksumAt + kChecksumBytes == kUseBytes);

using UseBytes = std::array<std::byte, kUseBytes>;

UseBytes encode(const Use& use) {
  UseBytes bytes{};
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  std::memcpy(bytes.data() + kKeyAt, use.key.digest.data(), use.key.digest.size());
  std::memcpy(bytes.data() + kTimeAt, &use.time, sizeof use.time);
  std::memcpy(bytes.data() + kWrittenAt, &use.written, sizeof use.written);
  const Checksum checksum = checksum_of(std::span(bytes).first(kChecksumAt));
  std::memcpy(bytes.data() + kChecksumAt, checksum.data(), kChecksumBytes);
  return bytes;
}

void make_private(const File& file) {
  if (::fchmod(file.descriptor(), 0600) != 0) {
    throw Error(ErrorCode::kIo, fmt::format("{}: cannot be made private", file.path().string()));
  }
}

}  // namespace

UsesRead read_uses(FileSystem& files, const std::filesystem::path& folder) {
  UsesRead result;
  std::unique_ptr<File> file;
  try {
    file = files.open(folder / kUsesName, FileSystem::Mode::kRead);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kNotFound) return result;
    throw;
  }
  std::vector<std::byte> bytes(file->size());
  file->read_exactly(0, bytes);
  for (size_t at = 0; at < bytes.size(); at += kUseBytes) {
    Use use;
    if (bytes.size() - at >= kUseBytes) {
      std::memcpy(use.key.digest.data(), bytes.data() + at + kKeyAt, use.key.digest.size());
      std::memcpy(&use.time, bytes.data() + at + kTimeAt, sizeof use.time);
      std::memcpy(&use.written, bytes.data() + at + kWrittenAt, sizeof use.written);
      if (std::memcmp(encode(use).data(), bytes.data() + at, kUseBytes) == 0) {
        result.uses.push_back(use);
        continue;
      }
    }
    ++result.damaged;
  }
  return result;
}

void rewrite_uses(FileSystem& files, const std::filesystem::path& folder, std::span<const Use> uses) {
  const std::filesystem::path path = folder / kUsesName;
  AtomicFile file(path, files);
  std::vector<std::byte> bytes;
  bytes.reserve(uses.size() * kUseBytes);
  for (const Use& use : uses) {
    const UseBytes record = encode(use);
    bytes.insert(bytes.end(), record.begin(), record.end());
  }
  file.write(bytes);
  file.commit();
  make_private(*files.open(path, FileSystem::Mode::kReadWrite));
}

UsesWriter::UsesWriter(FileSystem& files, const std::filesystem::path& folder)
    : file_(files.open(folder / kUsesName, FileSystem::Mode::kReadWrite)) {
  make_private(*file_);
  end_ = file_->size() / kUseBytes * kUseBytes;  // over a torn end
}

void UsesWriter::append(const Use& use) {
  file_->write_all(end_, encode(use));
  end_ += kUseBytes;
}

}  // namespace tidepool::store
