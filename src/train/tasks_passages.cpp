#include "train/tasks_passages.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace tidepool {
namespace {

/// Of one document at a time, so that long passages see several.
constexpr size_t kRunBytesMax = size_t{8} << 10;
/// Longer lines are broken at a space: a passage of few tokens must find lines that fit.
constexpr size_t kLineBytesMax = 256;
/// Lines that are tried for what room is left at the end.
constexpr int kMissesMax = 8;
/// Places that are tried in a row without one line that can be used.
constexpr int kTriesMax = 1000;

/// The line from `position` on, or as much of it as a line may have; empty with text behind it: a word too long to
/// keep.
std::string_view line_at(std::string_view text, size_t position) {
  const std::string_view rest = text.substr(position);
  const std::string_view line = rest.substr(0, rest.find('\n'));
  if (line.size() <= kLineBytesMax) return line;
  const size_t space = line.rfind(' ', kLineBytesMax);
  return line.substr(0, space == std::string_view::npos ? 0 : space);
}

}  // namespace

Passages::Passages(const Corpus& corpus, const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  for (const Split split : {Split::kTrain, Split::kHeldout}) {
    Part& part = parts_[static_cast<size_t>(split)];
    uint64_t bytes = 0;
    for (const CorpusSource& source : corpus.sources()) {
      for (const CorpusDocument& document : source.documents(split)) {
        if (document.text.empty()) continue;
        part.documents.push_back(&document);
        part.ends.push_back(bytes += document.text.size());
      }
    }
    if (bytes == 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("the corpus has no {} documents; run tools/fetch_corpus.sh", split_name(split)));
    }
  }
}

std::string Passages::draw(Split split, size_t tokens, RandomStream& random) const {
  const Part& part = parts_[static_cast<size_t>(split)];
  std::string passage;
  size_t used = 0;
  int misses = 0;
  for (int tries = 0; tries < kTriesMax && misses < kMissesMax; ++tries) {
    const uint64_t place = random.below(part.ends.back());
    const auto index = static_cast<size_t>(std::ranges::upper_bound(part.ends, place) - part.ends.begin());
    const std::string_view text = part.documents[index]->text;
    size_t position = text.rfind('\n', place - (part.ends[index] - text.size()));
    position = position == std::string_view::npos ? 0 : position + 1;
    const size_t end = std::min(text.size(), position + kRunBytesMax);
    while (position < end) {
      const std::string_view line = line_at(text, position);
      if (line.empty() && text[position] != '\n') break;
      position += line.size() + 1;  // the line feed, or the space that became one
      // Pieces end with a line, so the tokens of lines add up; an empty line joins the feed before it and costs less.
      const std::string with_feed = std::string(line) + "\n";
      const size_t cost = tokenizer_.encode_plain(with_feed).size();
      if (used + cost > tokens) {
        ++misses;
        break;
      }
      used += cost;
      passage += with_feed;
      tries = 0;
    }
  }
  return passage;
}

}  // namespace tidepool
