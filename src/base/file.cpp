#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace tidepool {
namespace {

[[noreturn]] void throw_io(std::string_view what, const std::filesystem::path& path, int error) {
  const ErrorCode code = error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo;
  throw Error(code, fmt::format("{}: cannot {}: {}", path.string(), what, std::generic_category().message(error)));
}

class RealFile final : public File {
 public:
  RealFile(std::filesystem::path path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  ~RealFile() override { ::close(descriptor_); }
  RealFile(const RealFile&) = delete;
  RealFile& operator=(const RealFile&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const override { return path_; }
  [[nodiscard]] int descriptor() const override { return descriptor_; }

  [[nodiscard]] uint64_t size() const override {
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0) throw_io("read the size", path_, errno);
    return static_cast<uint64_t>(status.st_size);
  }

  [[nodiscard]] size_t read_some(uint64_t offset, std::span<std::byte> out) const override {
    while (true) {
      const ssize_t count = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
      if (count >= 0) return static_cast<size_t>(count);
      if (errno != EINTR) throw_io("read", path_, errno);
    }
  }

  [[nodiscard]] size_t write_some(uint64_t offset, std::span<const std::byte> bytes) override {
    while (true) {
      const ssize_t count = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (count > 0 || (count == 0 && bytes.empty())) return static_cast<size_t>(count);
      if (count == 0) throw_io("write", path_, ENOSPC);
      if (errno != EINTR) throw_io("write", path_, errno);
    }
  }

  void truncate(uint64_t size) override {
    if (::ftruncate(descriptor_, static_cast<off_t>(size)) != 0) throw_io("set the size", path_, errno);
  }

  void sync() override {
    if (::fsync(descriptor_) != 0) throw_io("sync", path_, errno);
  }

 private:
  std::filesystem::path path_;
  int descriptor_;
};

class RealFileSystem final : public FileSystem {
 public:
  std::unique_ptr<File> open(const std::filesystem::path& path, Mode mode) override {
    int flags = O_CLOEXEC | O_NONBLOCK;  // opening a FIFO would wait for its other end; files do not care
    switch (mode) {
      case Mode::kRead: flags |= O_RDONLY; break;
      case Mode::kReadWrite: flags |= O_RDWR | O_CREAT; break;
      case Mode::kCreate: flags |= O_RDWR | O_CREAT | O_EXCL; break;
    }
    const int descriptor = ::open(path.c_str(), flags, 0644);
    if (descriptor < 0) throw_io("open", path, errno);
    auto file = std::make_unique<RealFile>(path, descriptor);
    struct stat status {};
    if (::fstat(descriptor, &status) != 0) throw_io("open", path, errno);
    if (!S_ISREG(status.st_mode)) throw Error(ErrorCode::kIo, fmt::format("{}: not a regular file", path.string()));
    return file;
  }

  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    if (std::rename(from.c_str(), to.c_str()) != 0) throw_io("rename to " + to.string(), from, errno);
  }

  void remove(const std::filesystem::path& path) override {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) throw_io("remove", path, errno);
  }

  void sync_folder(const std::filesystem::path& folder) override {
    const std::filesystem::path named = folder.empty() ? "." : folder;
    const int descriptor = ::open(named.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) throw_io("open", named, errno);
    const int result = ::fsync(descriptor);
    const int error = errno;
    ::close(descriptor);
    if (result != 0) throw_io("sync", named, error);
  }
};

constexpr std::string_view kTemporaryMark = ".tmp.";

/// A name nobody else uses: process id and a counter (the only state, and it carries no meaning).
std::filesystem::path temporary_beside(const std::filesystem::path& path) {
  static std::atomic<uint64_t> counter{0};
  // Relaxed: only distinctness matters.
  const uint64_t number = counter.fetch_add(1, std::memory_order_relaxed);
  std::filesystem::path temporary = path;
  temporary += fmt::format("{}{}.{}", kTemporaryMark, ::getpid(), number);
  return temporary;
}

/// Whether temporary_beside made the name.
bool is_temporary(std::string_view name) {
  const size_t mark = name.rfind(kTemporaryMark);
  if (mark == std::string_view::npos) return false;
  const std::string_view numbers = name.substr(mark + kTemporaryMark.size());
  const size_t dot = numbers.find('.');
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  return dot != std::string_view::npos && is_number(numbers.substr(0, dot)) && is_number(numbers.substr(dot + 1));
}

size_t page_bytes() {
  return static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

int advice_of(MappedFile::Access access) {
  switch (access) {
    case MappedFile::Access::kNormal: return MADV_NORMAL;
    case MappedFile::Access::kSequential: return MADV_SEQUENTIAL;
    case MappedFile::Access::kRandom: return MADV_RANDOM;
    case MappedFile::Access::kWillNeed: return MADV_WILLNEED;
    case MappedFile::Access::kDontNeed: return MADV_DONTNEED;
  }
  TIDEPOOL_CHECK(false, "not an access pattern");
}

}  // namespace

void File::read_exactly(uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const size_t count = read_some(offset, out);
    if (count == 0) {
      throw Error(ErrorCode::kCorrupt, fmt::format("{}: ends at byte {}, but {} more bytes were expected there",
                                                   path().string(), offset, out.size()));
    }
    offset += count;
    out = out.subspan(count);
  }
}

void File::write_all(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t count = write_some(offset, bytes);
    offset += count;
    bytes = bytes.subspan(count);
  }
}

FileSystem& real_file_system() {
  static RealFileSystem files;
  return files;
}

std::string read_file(const std::filesystem::path& path, uint64_t bytes_max, FileSystem& files) {
  const std::unique_ptr<File> file = files.open(path, FileSystem::Mode::kRead);
  const uint64_t size = file->size();
  if (size > bytes_max) {
    throw Error(ErrorCode::kResourceExhausted,
                fmt::format("{}: {} bytes, more than the {} allowed here", path.string(), size, bytes_max));
  }
  std::string text(size, '\0');
  file->read_exactly(0, std::as_writable_bytes(std::span(text)));
  return text;
}

namespace {

/// A rename would put a file where a device, a folder or a link was.
void check_replaceable(const std::filesystem::path& path) {
  std::error_code unknown;  // what cannot be looked at fails with a better message when it is opened
  const std::filesystem::file_status status = std::filesystem::symlink_status(path, unknown);
  if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status)) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("{}: exists and is not an ordinary file, so it is not replaced; name another file", path.string()));
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path, FileSystem& files)
    : path_(std::move(path)),
      temporary_(temporary_beside(path_)),
      files_(files),
      file_((check_replaceable(path_), files.open(temporary_, FileSystem::Mode::kCreate))) {}

AtomicFile::~AtomicFile() {
  if (file_ == nullptr) return;
  file_.reset();
  try {
    files_.remove(temporary_);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s (left behind)\n", error.what());
  }
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  TIDEPOOL_CHECK(file_ != nullptr, "write after commit");
  file_->write_all(size_, bytes);
  size_ += bytes.size();
}

void AtomicFile::commit() {
  TIDEPOOL_CHECK(file_ != nullptr, "commit twice");
  file_->sync();
  files_.rename(temporary_, path_);
  file_.reset();
  files_.sync_folder(path_.parent_path());
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text, FileSystem& files) {
  AtomicFile file(path, files);
  file.write(text);
  file.commit();
}

void remove_unfinished_files(const std::filesystem::path& folder, FileSystem& files) {
  std::error_code failure;
  std::filesystem::directory_iterator at(folder, failure);
  if (failure == std::errc::no_such_file_or_directory) return;
  for (; !failure && at != std::filesystem::directory_iterator(); at.increment(failure)) {
    if (is_temporary(at->path().filename().native())) files.remove(at->path());
  }
  if (failure) throw_io("list", folder, failure.value());
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const std::unique_ptr<File> file = real_file_system().open(path, FileSystem::Mode::kRead);
  *this = MappedFile(*file, 0, file->size());
}

MappedFile::MappedFile(const File& file, uint64_t offset, uint64_t bytes) {
  const uint64_t size = file.size();
  if (offset > size || bytes > size - offset) {
    throw Error(ErrorCode::kCorrupt, fmt::format("{}: {} bytes long, but {} bytes from {} on are needed",
                                                 file.path().string(), size, bytes, offset));
  }
  if (bytes == 0) return;
  const uint64_t lead = offset % page_bytes();
  const size_t mapped = static_cast<size_t>(bytes + lead);
  // MAP_PRIVATE of a read-only mapping takes no memory of its own: pages are the page cache's.
  void* base = ::mmap(nullptr, mapped, PROT_READ, MAP_PRIVATE | MAP_NORESERVE, file.descriptor(),
                      static_cast<off_t>(offset - lead));
  if (base == MAP_FAILED) {
    const int error = errno;
    throw Error(error == ENOMEM ? ErrorCode::kResourceExhausted : ErrorCode::kIo,
                fmt::format("{}: cannot map {} bytes: {}{}", file.path().string(), bytes,
                            std::generic_category().message(error),
                            error == ENOMEM ? " (raise the address-space limit, `ulimit -v`)" : ""));
  }
  base_ = base;
  mapped_bytes_ = mapped;
  bytes_ = {static_cast<const std::byte*>(base) + lead, static_cast<size_t>(bytes)};
}

MappedFile::~MappedFile() {
  unmap();
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)),
      bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this == &other) return *this;
  unmap();
  base_ = std::exchange(other.base_, nullptr);
  mapped_bytes_ = std::exchange(other.mapped_bytes_, 0);
  bytes_ = std::exchange(other.bytes_, {});
  return *this;
}

void MappedFile::unmap() noexcept {
  if (base_ != nullptr) ::munmap(base_, mapped_bytes_);
}

void MappedFile::advise(Access access, size_t offset, size_t bytes) const {
  TIDEPOOL_CHECK(offset <= bytes_.size() && bytes <= bytes_.size() - offset, "advice outside the mapping");
  if (bytes == 0) return;
  const auto begin = static_cast<size_t>(bytes_.data() - static_cast<const std::byte*>(base_)) + offset;
  const size_t lead = begin % page_bytes();
  // A hint: a kernel that does not know it changes nothing.
  (void)::madvise(static_cast<std::byte*>(base_) + (begin - lead), bytes + lead, advice_of(access));
}

}  // namespace tidepool
