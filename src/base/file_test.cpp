#include "base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/faulty_file_system.h"
#include "base/folder_lock.h"
#include "base/temp_folder.h"

namespace tidepool {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMany = 1 << 20;

template <typename F>
Error error_of(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::kCancelled, "no error at all"};
}

size_t files_in(const std::filesystem::path& folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder))
    ++count;
  return count;
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(File, ReadsBackWhatWasWritten) {
  const TempFolder folder;
  write_file_atomically(folder / "a", "hello");
  EXPECT_EQ(read_file(folder / "a", kMany), "hello");
  EXPECT_EQ(files_in(folder.path()), 1U);
}

TEST(File, AnEmptyFileIsEmptyText) {
  const TempFolder folder;
  write_file_atomically(folder / "a", "");
  EXPECT_EQ(read_file(folder / "a", 0), "");
}

TEST(File, AMissingFileIsNotFoundAndNamed) {
  const Error error = error_of([] { (void)read_file("/nowhere/at/all", kMany); });
  EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  EXPECT_THAT(error.what(), HasSubstr("/nowhere/at/all: cannot open"));
}

TEST(File, AFolderIsNoFile) {
  const TempFolder folder;
  const Error error = error_of([&] { (void)read_file(folder.path(), kMany); });
  EXPECT_EQ(error.code(), ErrorCode::kIo);
  EXPECT_THAT(error.what(), HasSubstr("not a regular file"));
}

TEST(File, AFifoIsRefusedWithoutWaitingForItsOtherEnd) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const FileSystem::Mode mode : {FileSystem::Mode::kRead, FileSystem::Mode::kReadWrite}) {
    const Error error = error_of([&] { (void)real_file_system().open(folder / "pipe", mode); });
    EXPECT_THAT(error.what(), HasSubstr("not a regular file"));
  }
}

TEST(File, AFileOverTheLimitIsRefused) {
  const TempFolder folder;
  write_file_atomically(folder / "a", "12345");
  const Error error = error_of([&] { (void)read_file(folder / "a", 4); });
  EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
}

TEST(File, ReadingPastTheEndIsCorrupt) {
  const TempFolder folder;
  write_file_atomically(folder / "a", "12345");
  const auto file = real_file_system().open(folder / "a", FileSystem::Mode::kRead);
  std::vector<std::byte> out(4);
  const Error error = error_of([&] { file->read_exactly(3, out); });
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
  EXPECT_THAT(error.what(), HasSubstr("ends at byte 5"));
}

TEST(File, CreatingAFileThatExistsIsRefused) {
  const TempFolder folder;
  write_file_atomically(folder / "a", "1");
  const Error error = error_of([&] { (void)real_file_system().open(folder / "a", FileSystem::Mode::kCreate); });
  EXPECT_EQ(error.code(), ErrorCode::kIo);
}

TEST(File, TruncateCutsAndExtends) {
  const TempFolder folder;
  const auto file = real_file_system().open(folder / "a", FileSystem::Mode::kReadWrite);
  file->write_all(0, std::as_bytes(std::span(std::string_view("12345"))));
  file->truncate(2);
  EXPECT_EQ(file->size(), 2U);
  file->truncate(4);
  EXPECT_EQ(read_file(folder / "a", kMany), std::string("12\0\0", 4));
}

TEST(File, RemovingWhatIsNotThereIsFine) {
  const TempFolder folder;
  EXPECT_NO_THROW(real_file_system().remove(folder / "a"));
}

TEST(AtomicFile, DroppedWithoutCommitLeavesTheOldBytesAndNothingElse) {
  const TempFolder folder;
  write_file_atomically(folder / "a", "old");
  {
    AtomicFile file(folder / "a");
    file.write("new");
  }
  EXPECT_EQ(read_file(folder / "a", kMany), "old");
  EXPECT_EQ(files_in(folder.path()), 1U);
}

TEST(AtomicFile, WhatIsNoOrdinaryFileIsNotReplaced) {
  const TempFolder folder;
  std::filesystem::create_symlink("elsewhere", folder / "link");
  std::filesystem::create_directory(folder / "folder");
  for (const std::string name : {"link", "folder"}) {
    try {
      const AtomicFile file(folder / name);
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << name;
    }
  }
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
}

TEST(AtomicFile, TwoWritersOfOneFileDoNotMix) {
  const TempFolder folder;
  AtomicFile first(folder / "a");
  AtomicFile second(folder / "a");
  first.write("first");
  second.write("second");
  first.commit();
  second.commit();
  EXPECT_EQ(read_file(folder / "a", kMany), "second");
}

TEST(AtomicFile, WhatAKilledWriterLeftIsRemovedAndNothingElse) {
  const TempFolder folder;
  const std::vector<std::string> kept{"a", "a.tmp", "a.tmp.1", "a.tmp.1.", "a.tmp.x.1", "a.tmp.1.2.b"};
  for (const std::string& name : kept)
    write_file_atomically(folder / name, "kept");
  const pid_t writer = ::fork();
  if (writer == 0) {
    AtomicFile file(folder / "a");
    file.write("half");
    ::_exit(0);  // as if killed: nothing is cleaned up
  }
  ASSERT_EQ(::waitpid(writer, nullptr, 0), writer);
  ASSERT_EQ(files_in(folder.path()), kept.size() + 1);
  remove_unfinished_files(folder.path());
  EXPECT_EQ(files_in(folder.path()), kept.size());
  for (const std::string& name : kept)
    EXPECT_EQ(read_file(folder / name, kMany), "kept");
  EXPECT_NO_THROW(remove_unfinished_files(folder / "no folder"));
  const Error error = error_of([&] { remove_unfinished_files(folder / "a"); });
  EXPECT_EQ(error.code(), ErrorCode::kIo);
  EXPECT_THAT(error.what(), HasSubstr("/a"));
}

TEST(Faults, ShortReadsAndWritesAreCarriedOn) {
  const TempFolder folder;
  FaultyFileSystem files({.read_bytes_max = 3, .write_bytes_max = 2});
  write_file_atomically(folder / "a", "hello world", files);
  EXPECT_EQ(read_file(folder / "a", kMany, files), "hello world");
}

class FaultsWhileWriting : public testing::TestWithParam<FaultPlan> {};

TEST_P(FaultsWhileWriting, LeaveTheOldBytesAndNothingElse) {
  const TempFolder folder;
  write_file_atomically(folder / "a", "old");
  FaultyFileSystem files(GetParam());
  const Error error = error_of([&] { write_file_atomically(folder / "a", "new bytes", files); });
  EXPECT_EQ(error.code(), ErrorCode::kIo);
  EXPECT_THAT(error.what(), HasSubstr(folder.path().string()));
  EXPECT_EQ(read_file(folder / "a", kMany), "old");
  EXPECT_EQ(files_in(folder.path()), 1U);
}

INSTANTIATE_TEST_SUITE_P(Each, FaultsWhileWriting,
                         testing::Values(FaultPlan{.disk_bytes = 0}, FaultPlan{.disk_bytes = 5},
                                         FaultPlan{.sync_fails = true}, FaultPlan{.rename_fails = true}));

TEST(Faults, ABadMediumIsAnErrorNotZeros) {
  const TempFolder folder;
  write_file_atomically(folder / "a", "hello world");
  FaultyFileSystem files({.bad_offset = 6});
  const Error error = error_of([&] { (void)read_file(folder / "a", kMany, files); });
  EXPECT_EQ(error.code(), ErrorCode::kIo);
  EXPECT_THAT(error.what(), HasSubstr("Input/output error"));
}

TEST(MappedFile, ShowsTheWholeFile) {
  const TempFolder folder;
  write_file_atomically(folder / "a", "hello");
  const MappedFile mapping(folder / "a");
  EXPECT_EQ(text_of(mapping.bytes()), "hello");
}

TEST(MappedFile, ARangeNeedNotLieOnPages) {
  const TempFolder folder;
  std::string text(20000, 'x');
  text.replace(9999, 5, "hello");
  write_file_atomically(folder / "a", text);
  const auto file = real_file_system().open(folder / "a", FileSystem::Mode::kRead);
  const MappedFile mapping(*file, 9999, 5);
  EXPECT_EQ(text_of(mapping.bytes()), "hello");
}

TEST(MappedFile, OutlivesItsFileAndMoves) {
  const TempFolder folder;
  write_file_atomically(folder / "a", "hello");
  MappedFile mapping;
  {
    const auto file = real_file_system().open(folder / "a", FileSystem::Mode::kRead);
    mapping = MappedFile(*file, 1, 3);
  }
  const MappedFile moved = std::move(mapping);
  EXPECT_EQ(text_of(moved.bytes()), "ell");
}

TEST(MappedFile, NothingIsMappedOfAnEmptyRange) {
  const TempFolder folder;
  write_file_atomically(folder / "a", "");
  const MappedFile mapping(folder / "a");
  EXPECT_TRUE(mapping.bytes().empty());
  mapping.advise(MappedFile::Access::kWillNeed);
}

TEST(MappedFile, ARangePastTheEndIsCorrupt) {
  const TempFolder folder;
  write_file_atomically(folder / "a", "hello");
  const auto file = real_file_system().open(folder / "a", FileSystem::Mode::kRead);
  EXPECT_EQ(error_of([&] { const MappedFile mapping(*file, 3, 3); }).code(), ErrorCode::kCorrupt);
  EXPECT_EQ(error_of([&] { const MappedFile mapping(*file, 6, 0); }).code(), ErrorCode::kCorrupt);
  // offset + bytes wraps around.
  EXPECT_EQ(error_of([&] { const MappedFile mapping(*file, 5, ~uint64_t{0}); }).code(), ErrorCode::kCorrupt);
}

TEST(MappedFile, AdviceChangesNoBytes) {
  const TempFolder folder;
  std::string text(50000, 'x');
  text[30000] = 'y';
  write_file_atomically(folder / "a", text);
  const MappedFile mapping(folder / "a");
  for (const auto access : {MappedFile::Access::kNormal, MappedFile::Access::kSequential, MappedFile::Access::kRandom,
                            MappedFile::Access::kWillNeed, MappedFile::Access::kDontNeed}) {
    mapping.advise(access, 12345, 20000);
    EXPECT_EQ(text_of(mapping.bytes()), text);
  }
}

TEST(MakeFolder, AFolderThatCannotBeMadeIsNamed) {
  const TempFolder folder;
  write_file_atomically(folder / "file", "");
  try {
    make_folder(folder / "file/model");
    FAIL() << "a folder was made in a file";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_THAT(error.what(), testing::HasSubstr("file/model: cannot make the folder"));
  }
}

}  // namespace
}  // namespace tidepool
