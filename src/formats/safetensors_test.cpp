#include "formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/temp_folder.h"

namespace tidepool {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

std::string length_prefix(uint64_t length) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i)
    bytes[i] = static_cast<char>(length >> (8 * i) & 0xff);
  return bytes;
}

/// A file of this header (padded to 8) and this much data.
std::string file_of(std::string header, size_t data_bytes) {
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return length_prefix(header.size()) + header + std::string(data_bytes, '\1');
}

Error error_of_file(const std::string& bytes) {
  const TempFolder folder;
  write_file_atomically(folder / "bad.safetensors", bytes);
  try {
    const SafetensorsFile file(folder / "bad.safetensors");
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("bad.safetensors: "));
    return error;
  }
  return {ErrorCode::kCancelled, "no error at all"};
}

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string data_of(const TensorView& view) {
  return {reinterpret_cast<const char*>(view.data), view.bytes};
}

TEST(Safetensors, ReadsBackWhatWasWritten) {
  const TempFolder folder;
  const std::vector<std::byte> one = bytes_of("one.");
  const std::vector<std::byte> three = bytes_of("abc");
  const TensorToWrite tensors[] = {{"b", Dtype::kU8, {3, 1}, three},
                                   {"a", Dtype::kF32, {}, one},
                                   {"empty", Dtype::kBf16, {0, 7}, {}},
                                   {"\"quoted\"\n\xc3\xa4", Dtype::kI32, {1}, one}};
  const std::vector<std::pair<std::string, std::string>> metadata = {{"z", "1"}, {"a", "\"2\""}};
  write_safetensors(folder / "t.safetensors", tensors, metadata);

  const SafetensorsFile file(folder / "t.safetensors");
  ASSERT_EQ(file.entries().size(), 4U);
  EXPECT_TRUE(std::is_sorted(file.entries().begin(), file.entries().end(),
                             [](const auto& a, const auto& b) { return a.name < b.name; }));
  EXPECT_EQ(data_of(file.tensor("b")), "abc");
  EXPECT_THAT(file.tensor("b").shape, ElementsAre(3, 1));
  EXPECT_EQ(data_of(file.tensor("a")), "one.");
  EXPECT_EQ(file.tensor("a").dtype, Dtype::kF32);
  EXPECT_TRUE(file.tensor("a").shape.empty());
  EXPECT_EQ(file.tensor("empty").bytes, 0U);
  EXPECT_EQ(data_of(file.tensor("\"quoted\"\n\xc3\xa4")), "one.");
  EXPECT_THAT(file.metadata(), ElementsAre(Pair("z", "1"), Pair("a", "\"2\"")));
}

TEST(Safetensors, EveryDtypeRoundTrips) {
  const TempFolder folder;
  const std::string text = "12345678";
  for (const Dtype dtype : {Dtype::kBool, Dtype::kU8, Dtype::kI8, Dtype::kI32, Dtype::kI64, Dtype::kU64, Dtype::kBf16,
                            Dtype::kF16, Dtype::kF32, Dtype::kF64, Dtype::kF8E4m3, Dtype::kF8E8m0}) {
    const std::vector<std::byte> data = bytes_of(text.substr(0, dtype_bytes(dtype)));
    const TensorToWrite tensor{"t", dtype, {1}, data};
    write_safetensors(folder / "t.safetensors", std::span(&tensor, 1));
    const SafetensorsFile file(folder / "t.safetensors");
    EXPECT_EQ(file.tensor("t").dtype, dtype);
    EXPECT_EQ(data_of(file.tensor("t")), text.substr(0, dtype_bytes(dtype)));
  }
}

TEST(Safetensors, DataIsAlignedToItsElements) {
  const TempFolder folder;
  const std::vector<std::byte> odd = bytes_of("123");
  const std::vector<std::byte> eight = bytes_of("12345678");
  const TensorToWrite tensors[] = {{"a", Dtype::kU8, {3}, odd},
                                   {"b", Dtype::kF64, {1}, eight},
                                   {"c", Dtype::kBf16, {4}, eight},
                                   {"d", Dtype::kF32, {2}, eight}};
  write_safetensors(folder / "t.safetensors", tensors);
  const SafetensorsFile file(folder / "t.safetensors");
  for (const auto& entry : file.entries()) {
    const TensorView view = file.tensor(entry);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data) % dtype_bytes(view.dtype), 0U) << entry.name;
  }
}

TEST(Safetensors, AnEmptyFileHasNoTensors) {
  const TempFolder folder;
  write_safetensors(folder / "t.safetensors", {});
  EXPECT_TRUE(SafetensorsFile(folder / "t.safetensors").entries().empty());
}

TEST(Safetensors, AMissingTensorIsNotFoundAndNamed) {
  const TempFolder folder;
  write_safetensors(folder / "t.safetensors", {});
  try {
    (void)SafetensorsFile(folder / "t.safetensors").tensor("nobody");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_THAT(error.what(), HasSubstr("t.safetensors: tensor \"nobody\": is not in this file"));
  }
}

TEST(Safetensors, ReadsRangesWithoutMapping) {
  const TempFolder folder;
  const std::vector<std::byte> data = bytes_of("0123456789");
  const TensorToWrite tensor{"t", Dtype::kU8, {10}, data};
  write_safetensors(folder / "t.safetensors", std::span(&tensor, 1));
  const SafetensorsFile file(folder / "t.safetensors");
  std::string out(3, ' ');
  file.read(file.entries()[0], 7, std::as_writable_bytes(std::span(out)));
  EXPECT_EQ(out, "789");
}

TEST(Safetensors, WritingANameThatIsNotUtf8IsRefused) {
  const TempFolder folder;
  const TensorToWrite tensor{"\xff", Dtype::kU8, {0}, {}};
  EXPECT_THROW(write_safetensors(folder / "t.safetensors", std::span(&tensor, 1)), Error);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SafetensorsDeathTest, WritingTwoTensorsOfOneNameIsABug) {
  const TensorToWrite tensors[] = {{"t", Dtype::kU8, {0}, {}}, {"t", Dtype::kU8, {0}, {}}};
  EXPECT_DEATH((void)make_safetensors_header(tensors), "two tensors of one name");
}

TEST(Safetensors, FollowsSymlinks) {
  const TempFolder folder;
  write_safetensors(folder / "blob", {});
  std::filesystem::create_symlink("blob", folder / "t.safetensors");
  EXPECT_NO_THROW(SafetensorsFile(folder / "t.safetensors"));
}

// ---- One way of being wrong each ----

constexpr const char* kGoodHeader = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";

TEST(SafetensorsDamage, TheUndamagedFileIsGood) {
  const TempFolder folder;
  write_file_atomically(folder / "good", file_of(kGoodHeader, 4));
  EXPECT_EQ(data_of(SafetensorsFile(folder / "good").tensor("a")), "\1\1\1\1");
}

TEST(SafetensorsDamage, CutInTheLength) {
  const Error error = error_of_file("\1\2\3");
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
  EXPECT_THAT(error.what(), HasSubstr("only 3 bytes"));
}

TEST(SafetensorsDamage, Empty) {
  EXPECT_THAT(error_of_file("").what(), HasSubstr("only 0 bytes"));
}

TEST(SafetensorsDamage, CutInTheHeader) {
  const Error error = error_of_file(file_of(kGoodHeader, 4).substr(0, 30));
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
  EXPECT_THAT(error.what(), HasSubstr("the file has only 22 after its length; it is cut off"));
}

TEST(SafetensorsDamage, CutInATensor) {
  const std::string whole = file_of(kGoodHeader, 4);
  for (const size_t missing : {size_t{1}, size_t{2}, size_t{4}}) {
    const Error error = error_of_file(whole.substr(0, whole.size() - missing));
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("tensor \"a\""), HasSubstr("it is cut off or still downloading")));
  }
}

TEST(SafetensorsDamage, HeaderLengthOverTheLimit) {
  EXPECT_THAT(error_of_file(length_prefix(100'000'001)).what(),
              HasSubstr("header of 100000001 bytes; the format allows"));
  EXPECT_THAT(error_of_file(length_prefix(uint64_t{1} << 60)).what(), HasSubstr("header of 1152921504606846976 bytes"));
  EXPECT_THAT(error_of_file(length_prefix(~uint64_t{0})).what(), HasSubstr("header of 18446744073709551615 bytes"));
}

TEST(SafetensorsDamage, HeaderLengthZero) {
  EXPECT_THAT(error_of_file(length_prefix(0) + "abc").what(), HasSubstr("not a safetensors file"));
}

struct Header {
  const char* name;
  std::string text;
  size_t data_bytes;
  const char* said;
  friend std::ostream& operator<<(std::ostream& out, const Header& header) { return out << header.name; }
};

class SafetensorsHeader : public testing::TestWithParam<Header> {};

TEST_P(SafetensorsHeader, IsRefused) {
  const Header& param = GetParam();
  EXPECT_THAT(error_of_file(file_of(param.text, param.data_bytes)).what(), HasSubstr(param.said));
}

std::string entry(const std::string& name, const std::string& rest) {
  return "\"" + name + "\":{" + rest + "}";
}

INSTANTIATE_TEST_SUITE_P(
    Layout, SafetensorsHeader,
    testing::Values(
        Header{"Overlap",
               "{" + entry("a", R"("dtype":"U8","shape":[4],"data_offsets":[0,4])") + "," +
                   entry("b", R"("dtype":"U8","shape":[4],"data_offsets":[3,7])") + "}",
               7, "tensor \"b\": begins at byte 3 of the data, inside tensor \"a\", which ends at 4"},
        Header{"SamePlace",
               "{" + entry("a", R"("dtype":"U8","shape":[4],"data_offsets":[0,4])") + "," +
                   entry("b", R"("dtype":"U8","shape":[4],"data_offsets":[0,4])") + "}",
               4, "inside tensor"},
        Header{"Hole",
               "{" + entry("a", R"("dtype":"U8","shape":[4],"data_offsets":[0,4])") + "," +
                   entry("b", R"("dtype":"U8","shape":[2],"data_offsets":[5,7])") + "}",
               7, "tensor \"b\": begins at byte 5 of the data, which leaves a hole from 4 on"},
        Header{"HoleAtTheStart", "{" + entry("a", R"("dtype":"U8","shape":[4],"data_offsets":[1,5])") + "}", 5,
               "leaves a hole from 0 on"},
        Header{"BytesBehind", kGoodHeader, 5, "the tensors end at byte 4 of the data, but the file goes on to 5"},
        Header{"BytesBehindNothing", "{}", 1, "the tensors end at byte 0"},
        Header{"OutOfRange", kGoodHeader, 3, "tensor \"a\": ends at byte 4 of the data, but the file has 3"},
        Header{"Backwards", "{" + entry("a", R"("dtype":"U8","shape":[4],"data_offsets":[4,0])") + "}", 4,
               "run backwards"},
        Header{"Misaligned",
               "{" + entry("a", R"("dtype":"U8","shape":[1],"data_offsets":[0,1])") + "," +
                   entry("b", R"("dtype":"F32","shape":[1],"data_offsets":[1,5])") + "}",
               5, "tensor \"b\": its data begins at byte"},
        Header{"Twice",
               "{" + entry("a", R"("dtype":"U8","shape":[4],"data_offsets":[0,4])") + "," +
                   entry("a", R"("dtype":"U8","shape":[4],"data_offsets":[4,8])") + "}",
               8, "tensor \"a\": is there twice"}));

INSTANTIATE_TEST_SUITE_P(
    Sizes, SafetensorsHeader,
    testing::Values(
        Header{"ShapeAgainstBytes", "{" + entry("a", R"("dtype":"F32","shape":[4],"data_offsets":[0,4])") + "}", 4,
               "shape [4] of F32 takes 16 bytes, but data_offsets span 4"},
        Header{"ShapeOverflow",
               "{" + entry("a", R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])") + "}", 0,
               "tensor \"a\": shape [4294967296, 4294967296] is too large"},
        Header{"ShapeOverflowByTheElement",
               "{" + entry("a", R"("dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0])") + "}", 0,
               "is too large"},
        Header{"ShapeOverflowBehindAZero",
               "{" + entry("a", R"("dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0])") + "}", 0,
               "is too large"},
        Header{"NegativeSize", "{" + entry("a", R"("dtype":"U8","shape":[-4],"data_offsets":[0,4])") + "}", 4,
               "shape has something other than sizes"},
        Header{"FractionalSize", "{" + entry("a", R"("dtype":"U8","shape":[4.0],"data_offsets":[0,4])") + "}", 4,
               "shape has something other than sizes"},
        Header{"OffsetOverflow",
               "{" + entry("a", R"("dtype":"U8","shape":[4],"data_offsets":[0,18446744073709551616])") + "}", 4,
               "not a JSON object"},
        Header{"OffsetOfAllOnes",
               "{" + entry("a", R"("dtype":"U8","shape":[4],"data_offsets":[0,18446744073709551615])") + "}", 4,
               "ends at byte 18446744073709551615"},
        Header{"NegativeOffset", "{" + entry("a", R"("dtype":"U8","shape":[4],"data_offsets":[-4,0])") + "}", 4,
               "data_offsets are not two unsigned 64-bit integers"},
        Header{"OneOffset", "{" + entry("a", R"("dtype":"U8","shape":[4],"data_offsets":[4])") + "}", 4,
               "data_offsets are not two"},
        Header{"ThreeOffsets", "{" + entry("a", R"("dtype":"U8","shape":[4],"data_offsets":[0,4,4])") + "}", 4,
               "data_offsets are not two"}));

INSTANTIATE_TEST_SUITE_P(
    Json, SafetensorsHeader,
    testing::Values(
        Header{"NotJson", "{nonsense", 0, "the header is not a JSON object: "},
        Header{"NoBrace", "hello", 0, "does not begin with '{'"},
        Header{"LeadingSpace", " {}", 0, "does not begin with '{'"},
        Header{"NotUtf8", "{\"\xff\":1}", 0, "the header is not a JSON object: "},
        Header{"TwoObjects", "{}{}", 0, "the header is not a JSON object: "},
        Header{"EntryIsAList", R"({"a":[]})", 0, "tensor \"a\": is not described by a JSON object"},
        Header{"DtypeIsANumber", "{" + entry("a", R"("dtype":1,"shape":[4],"data_offsets":[0,4])") + "}", 4,
               "dtype is not a string"},
        Header{"UnknownDtype", "{" + entry("a", R"("dtype":"F4","shape":[4],"data_offsets":[0,4])") + "}", 4,
               "tensor \"a\": dtype \"F4\" is not read; known are BOOL"},
        Header{"ShapeIsANumber", "{" + entry("a", R"("dtype":"U8","shape":4,"data_offsets":[0,4])") + "}", 4,
               "shape is not an array"},
        Header{"OffsetsAreAString", "{" + entry("a", R"("dtype":"U8","shape":[4],"data_offsets":"0,4")") + "}", 4,
               "data_offsets is not an array"},
        Header{"NoShape", "{" + entry("a", R"("dtype":"U8","data_offsets":[0,4])") + "}", 4,
               "needs dtype, shape and data_offsets, each once"},
        Header{"TwoDtypes", "{" + entry("a", R"("dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4])") + "}", 4,
               "each once"},
        Header{"UnknownKey", "{" + entry("a", R"("dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1)") + "}", 4,
               "has an unknown key \"x\""},
        Header{"MetadataIsAList", R"({"__metadata__":[]})", 0, "__metadata__ is not a JSON object"},
        Header{"MetadataOfNumbers", R"({"__metadata__":{"a":1}})", 0, "the value of \"a\" is not a string"},
        Header{"MetadataTwice", R"({"__metadata__":{},"__metadata__":{}})", 0, "__metadata__ is there twice"},
        Header{"NestingBomb", "{\"a\":" + std::string(100000, '['), 0, "the header is not a JSON object: "},
        Header{"ClosedNestingBomb", "{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}", 0,
               "the header is not a JSON object: "},
        Header{"ControlCharactersInANameAreShown", R"({"a\u001b[31m":1})", 0, "tensor \"a\\x1b[31m\""}));

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)  // g++
constexpr bool kIsSanitized = true;
#elif defined(__has_feature)  // clang
constexpr bool kIsSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kIsSanitized = false;
#endif

/// Allows this process only so much address space until the end of the scope.
class AddressSpaceLimit {
 public:
  explicit AddressSpaceLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_AS, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_AS, &limit);
  }
  ~AddressSpaceLimit() { ::setrlimit(RLIMIT_AS, &before_); }
  AddressSpaceLimit(const AddressSpaceLimit&) = delete;
  AddressSpaceLimit& operator=(const AddressSpaceLimit&) = delete;

 private:
  rlimit before_{};
};

uint64_t address_space_bytes() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

// A shard of 101 GB must not need 101 GB of address space to be opened, nor for its small tensors.
TEST(Safetensors, AShardOf100GigabytesOpensUnderAnAddressSpaceLimit) {
  const TempFolder folder;
  constexpr int64_t kRows = 390'625'000;  // of 256 bytes: 100 GB
  const TensorToWrite tensors[] = {
      {"before", Dtype::kU8, {4}, {}}, {"table", Dtype::kF8E4m3, {kRows, 256}, {}}, {"after", Dtype::kU8, {4}, {}}};
  const std::string header = make_safetensors_header(tensors);
  {
    const auto file = real_file_system().open(folder / "big.safetensors", FileSystem::Mode::kCreate);
    file->write_all(0, std::as_bytes(std::span(header)));
    file->write_all(header.size() + 4 + kRows * 256 - 2, bytes_of("yzlast"));
  }
  // Sanitizers reserve terabytes of address space, so there only the growth is looked at.
  std::optional<AddressSpaceLimit> limit;
  if (!kIsSanitized) limit.emplace(rlim_t{4} << 30);
  const uint64_t before = address_space_bytes();
  const SafetensorsFile file(folder / "big.safetensors");
  EXPECT_EQ(data_of(file.tensor("after")), "last");
  EXPECT_EQ(data_of(file.tensor("before")), std::string(4, '\0'));
  std::string row_end(2, ' ');
  file.read(*file.find("table"), kRows * 256 - 2, std::as_writable_bytes(std::span(row_end)));
  EXPECT_EQ(row_end, "yz");
  EXPECT_LT(address_space_bytes() - before, uint64_t{1} << 30);
  if (!limit) return;
  try {
    (void)file.tensor("table");
    FAIL() << "100 GB cannot have been mapped";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
    EXPECT_THAT(error.what(), HasSubstr("raise the address-space limit"));
  }
}

}  // namespace
}  // namespace tidepool
