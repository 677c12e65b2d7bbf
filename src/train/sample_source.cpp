#include "train/sample_source.h"

#include <fmt/format.h>

#include <span>
#include <vector>

#include "base/error.h"
#include "text/tokenizer_control.h"
#include "train/random_stream.h"

namespace tidepool {
namespace {

class TaskSource final : public SampleSource {
 public:
  TaskSource(std::string name, std::unique_ptr<Task> task, Split split, uint64_t seed, const SampleEncoding& encoding)
      : SampleSource(std::move(name)), task_(std::move(task)), split_(split), seed_(seed), encoding_(encoding) {}

  [[nodiscard]] Sample make(uint64_t place) const override {
    return make_sample(encoding_, task_->make({split_, seed_, place}));
  }

 private:
  std::unique_ptr<Task> task_;
  Split split_;
  uint64_t seed_;
  SampleEncoding encoding_;
};

class TextSource final : public SampleSource {
 public:
  TextSource(const CorpusSource& source, const TextSourceOptions& options, const Tokenizer& tokenizer, ThreadPool& pool)
      : SampleSource(source.name), seed_(options.seed), control_(find_control_tokens(tokenizer)) {
    const std::vector<CorpusDocument>& documents = source.documents(options.split);
    documents_.resize(documents.size());
    pool.run(documents.size(), [&](size_t index, size_t /*worker*/) {
      documents_[index] = tokenizer.encode_plain(documents[index].text);
      documents_[index].push_back(control_.end_of_sentence);
    });
    for (size_t index = 0; index < documents_.size(); ++index)
      cut(index, options.length_max - 1);  // the begin of sentence takes one
    if (pieces_.empty()) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("source {} has no {} documents; run tools/fetch_corpus.sh",
                                                           source.name, split_name(options.split)));
    }
  }

  [[nodiscard]] Sample make(uint64_t place) const override {
    const Piece& piece = pieces_[shuffled_index(seed_, place / pieces_.size(), place % pieces_.size(), pieces_.size())];
    const std::span<const int32_t> tokens = std::span(documents_[piece.document]).subspan(piece.begin, piece.count);
    Sample sample;
    sample.ids.reserve(tokens.size() + 1);
    sample.ids.push_back(control_.begin_of_sentence);
    sample.ids.insert(sample.ids.end(), tokens.begin(), tokens.end());
    sample.weights.assign(sample.ids.size(), 1);
    sample.weights.back() = 0;
    return sample;
  }

 private:
  struct Piece {
    size_t document = 0;
    size_t begin = 0;  ///< token
    size_t count = 0;
  };

  void cut(size_t document, size_t length_max) {
    const size_t tokens = documents_[document].size();
    const size_t count = (tokens + length_max - 1) / length_max;
    for (size_t i = 0; i < count; ++i) {
      const size_t begin = tokens * i / count;
      pieces_.push_back({document, begin, tokens * (i + 1) / count - begin});
    }
  }

  uint64_t seed_;
  ControlTokens control_;
  std::vector<std::vector<int32_t>> documents_;
  std::vector<Piece> pieces_;
};

}  // namespace

std::unique_ptr<SampleSource> make_task_source(std::string name, std::unique_ptr<Task> task, Split split, uint64_t seed,
                                               const SampleEncoding& encoding) {
  return std::make_unique<TaskSource>(std::move(name), std::move(task), split, seed, encoding);
}

std::unique_ptr<SampleSource> make_text_source(const CorpusSource& source, const TextSourceOptions& options,
                                               const Tokenizer& tokenizer, ThreadPool& pool) {
  if (options.length_max < 2) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("source {}: samples of {} tokens; at least 2 are needed", source.name, options.length_max));
  }
  return std::make_unique<TextSource>(source, options, tokenizer, pool);
}

}  // namespace tidepool
