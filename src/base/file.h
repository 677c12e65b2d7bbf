#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tidepool {

/// An open file. Thread-safe, as offsets are given with every call. Errors are Error(kIo) with path and reason.
class File {
 public:
  virtual ~File() = default;
  File() = default;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  [[nodiscard]] virtual const std::filesystem::path& path() const = 0;
  [[nodiscard]] virtual uint64_t size() const = 0;
  /// Reads up to out.size() bytes; fewer only now and then (a signal) or at the end, 0 at or past the end.
  [[nodiscard]] virtual size_t read_some(uint64_t offset, std::span<std::byte> out) const = 0;
  /// Writes at least one byte of a non-empty `bytes` and returns how many; extends the file as needed.
  [[nodiscard]] virtual size_t write_some(uint64_t offset, std::span<const std::byte> bytes) = 0;
  /// Cuts or extends (with zeros, sparsely) to `size` bytes.
  virtual void truncate(uint64_t size) = 0;
  /// Returns when the bytes are on the medium.
  virtual void sync() = 0;
  /// The operating system's handle, for mapping.
  [[nodiscard]] virtual int descriptor() const = 0;

  /// Fills `out` or throws Error(kCorrupt): the file ends too early.
  void read_exactly(uint64_t offset, std::span<std::byte> out) const;
  /// Writes all of `bytes`.
  void write_all(uint64_t offset, std::span<const std::byte> bytes);
};

/// The operating system's files, behind an interface so that tests can inject faults (see faulty_file_system.h).
class FileSystem {
 public:
  enum class Mode {
    kRead,       ///< an existing file, read-only
    kReadWrite,  ///< an existing or new file
    kCreate,     ///< a new file; one that exists is an error
  };

  virtual ~FileSystem() = default;
  FileSystem() = default;
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;

  /// Throws Error: kNotFound when there is none to read, otherwise kIo.
  [[nodiscard]] virtual std::unique_ptr<File> open(const std::filesystem::path& path, Mode mode) = 0;
  /// Replaces `to` atomically.
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  /// A file that is not there is no error.
  virtual void remove(const std::filesystem::path& path) = 0;
  /// Makes creations, renames and removals in `folder` durable.
  virtual void sync_folder(const std::filesystem::path& folder) = 0;
};

/// The real one. Stateless.
[[nodiscard]] FileSystem& real_file_system();

/// The whole file. Throws Error: kNotFound, kIo, kResourceExhausted when it is larger than `bytes_max`.
[[nodiscard]] std::string read_file(const std::filesystem::path& path, uint64_t bytes_max,
                                    FileSystem& files = real_file_system());

/// Writes a file so that a reader sees the old bytes or all of the new ones, also after a power cut: a temporary
/// beside it, sync, rename, sync of the folder. Dropped without `commit`, it leaves nothing behind.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path, FileSystem& files = real_file_system());
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Puts the file in place. Call once, last.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  FileSystem& files_;
  std::unique_ptr<File> file_;
  uint64_t size_ = 0;
};

/// AtomicFile in one call.
void write_file_atomically(const std::filesystem::path& path, std::string_view text,
                           FileSystem& files = real_file_system());

/// Removes from `folder`, if there is one, what an AtomicFile left behind whose process was killed. Only for who owns
/// the folder (FolderLock): a file that is being written looks the same. Throws Error(kIo).
void remove_unfinished_files(const std::filesystem::path& folder, FileSystem& files = real_file_system());

/// A read-only mapping of a file or a part of it. Pages are read when touched. The file may be closed afterwards.
/// If another process cuts the file short, touching the lost part ends this process (SIGBUS): replace files by rename.
class MappedFile {
 public:
  /// What will be done with a range: a hint to the operating system, never needed for correctness.
  enum class Access {
    kNormal,
    kSequential,  ///< read ahead generously
    kRandom,      ///< do not read ahead: rows of a huge table
    kWillNeed,    ///< start reading now
    kDontNeed,    ///< these pages may go
  };

  MappedFile() = default;
  /// Maps the whole file.
  explicit MappedFile(const std::filesystem::path& path);
  /// Maps [offset, offset + bytes), which need not lie on page boundaries. Throws Error: kCorrupt when the file is
  /// shorter, kResourceExhausted when there is no address space.
  MappedFile(const File& file, uint64_t offset, uint64_t bytes);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  /// `offset` and `bytes` lie within bytes().
  void advise(Access access, size_t offset, size_t bytes) const;
  void advise(Access access) const { advise(access, 0, bytes_.size()); }

 private:
  void unmap() noexcept;

  void* base_ = nullptr;  ///< null when nothing is mapped
  size_t mapped_bytes_ = 0;
  std::span<const std::byte> bytes_;
};

}  // namespace tidepool
