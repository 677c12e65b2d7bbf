#include "train/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "base/temp_folder.h"

namespace tidepool {
namespace {

using ::testing::HasSubstr;

constexpr const char* kManifest = R"({"format": 1, "sources": [{"name": "tales", "packages": [],
  "train": {"file": "tales.train.jsonl", "documents": 2, "bytes": 10},
  "heldout": {"file": "tales.heldout.jsonl", "documents": 1, "bytes": 5}}]})";

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    return error.what();
  }
  return "nothing was refused";
}

TEST(Corpus, HasTheDocumentsOfItsFiles) {
  const TempFolder folder;
  write_file_atomically(folder.path() / "manifest.json", kManifest);
  write_file_atomically(folder.path() / "tales.train.jsonl",
                        "{\"name\": \"a\", \"text\": \"Ä\\n1\"}\n\n{\"name\": \"b\", \"text\": \"2\"}");
  write_file_atomically(folder.path() / "tales.heldout.jsonl", "{\"name\": \"c\", \"text\": \"3\"}\n");
  const Corpus corpus = Corpus::load(folder.path());
  ASSERT_EQ(corpus.sources().size(), 1);
  const CorpusSource* tales = corpus.find("tales");
  ASSERT_NE(tales, nullptr);
  ASSERT_EQ(tales->train.size(), 2);
  EXPECT_EQ(tales->train[0].text, "Ä\n1");
  EXPECT_EQ(tales->train[1].name, "b");
  ASSERT_EQ(tales->documents(Split::kHeldout).size(), 1);
  EXPECT_EQ(tales->heldout[0].text, "3");
  EXPECT_EQ(corpus.find("songs"), nullptr);
}

TEST(Corpus, AFileThatIsCutShortIsRefused) {
  const TempFolder folder;
  write_file_atomically(folder.path() / "manifest.json", kManifest);
  write_file_atomically(folder.path() / "tales.train.jsonl", "{\"name\": \"a\", \"text\": \"1\"}\n");
  write_file_atomically(folder.path() / "tales.heldout.jsonl", "{\"name\": \"c\", \"text\": \"3\"}\n");
  EXPECT_THAT(message_of([&] { (void)Corpus::load(folder.path()); }),
              HasSubstr("tales.train.jsonl: it has 1 documents, and manifest.json says 2; run tools/fetch_corpus.sh"));
}

TEST(Corpus, AMissingFileIsNamed) {
  const TempFolder folder;
  try {
    (void)Corpus::load(folder.path());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_THAT(error.what(), HasSubstr("manifest.json"));
  }
}

TEST(Corpus, ALineThatIsWrongIsNamed) {
  EXPECT_THAT(message_of([] { (void)parse_corpus_documents("{\"name\": \"a\", \"text\": \"1\"}\n{", "x.jsonl"); }),
              HasSubstr("x.jsonl:2: "));
  EXPECT_THAT(message_of([] { (void)parse_corpus_documents("{\"name\": \"a\"}", "x.jsonl"); }),
              HasSubstr("x.jsonl:1: \"text\" is not there"));
}

TEST(Corpus, AManifestThatIsWrongIsRefused) {
  const auto refuse = [](std::string_view json) {
    return message_of([&] { (void)parse_corpus_manifest(json, "manifest.json"); });
  };
  EXPECT_THAT(refuse("{}"), HasSubstr("\"format\" is not 1"));
  EXPECT_THAT(refuse(R"({"format": 2, "sources": []})"), HasSubstr("\"format\" is not 1"));
  EXPECT_THAT(refuse(R"({"format": 1})"), HasSubstr("\"sources\""));
  EXPECT_THAT(refuse(R"({"format": 1, "sources": [{"name": "x"}]})"), HasSubstr("no \"train\""));
  EXPECT_THAT(refuse(R"({"format": 1, "sources": [{"name": "x", "train": {"file": "x", "documents": -1}}]})"),
              HasSubstr("\"documents\" of x is not a number"));
  // A manifest cannot make the program read files from elsewhere.
  EXPECT_THAT(refuse(R"({"format": 1, "sources": [{"name": "x", "train": {"file": "../x"}}]})"),
              HasSubstr("not the name of a file beside it"));
}

}  // namespace
}  // namespace tidepool
