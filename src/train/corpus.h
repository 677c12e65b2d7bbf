#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tidepool {

/// Which part of what there is to learn from: no item is in both.
enum class Split : uint8_t { kTrain, kHeldout };

/// "train" or "heldout".
[[nodiscard]] std::string_view split_name(Split split);

struct CorpusDocument {
  std::string name;  ///< "linux-doc-6.1/admin-guide/md.rst.gz": package and place in it
  std::string text;
};

/// Documents of one kind.
struct CorpusSource {
  std::string name;  ///< "linux-doc"
  std::vector<CorpusDocument> train;
  std::vector<CorpusDocument> heldout;

  [[nodiscard]] const std::vector<CorpusDocument>& documents(Split split) const {
    return split == Split::kTrain ? train : heldout;
  }
};

/// The texts that tools/fetch_corpus.sh leaves in a folder. (docs/training.md, "Data") Immutable.
class Corpus {
 public:
  /// Reads manifest.json and the files it names. Throws Error: kNotFound or kIo for a file, kCorrupt naming file and
  /// line for what it says, or a file that has another number of documents than the manifest says.
  [[nodiscard]] static Corpus load(const std::filesystem::path& folder);
  /// A corpus of given texts.
  explicit Corpus(std::vector<CorpusSource> sources) : sources_(std::move(sources)) {}

  [[nodiscard]] const std::vector<CorpusSource>& sources() const { return sources_; }
  /// Null when there is none of that name.
  [[nodiscard]] const CorpusSource* find(std::string_view name) const;

 private:
  std::vector<CorpusSource> sources_;
};

/// A file of documents that a manifest names.
struct CorpusFile {
  std::string name;
  std::optional<int64_t> documents;  ///< how many it says are in it
};

/// What the manifest says of a source: its name and its files.
struct CorpusEntry {
  std::string name;
  CorpusFile train;
  CorpusFile heldout;
};

/// Reads the text of a manifest.json; `name` stands for it in messages. Throws Error(kCorrupt).
[[nodiscard]] std::vector<CorpusEntry> parse_corpus_manifest(std::string_view json, const std::string& name);

/// Reads the text of a file of documents, one {"name": …, "text": …} a line. Throws Error(kCorrupt) naming the line.
[[nodiscard]] std::vector<CorpusDocument> parse_corpus_documents(std::string_view lines, const std::string& name);

}  // namespace tidepool
