#include "train/bpe_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <queue>
#include <unordered_set>

#include "base/error.h"
#include "text/bpe.h"
#include "text/json.h"
#include "text/pretokenizer.h"

namespace tidepool {
namespace {

constexpr size_t kByteTokens = 256;

/// Released ids 0-2, 128799-128804, 128821, 128822, 128825, 128828-128832, 128836, 128845, 129264.
constexpr std::array<std::string_view, 20> kControlTokens = {
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜▁pad▁｜>",
    "<｜System｜>",
    "<｜fim▁hole｜>",
    "<｜fim▁begin｜>",
    "<｜fim▁end｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜latest_reminder｜>",
    "<｜action｜>",
    "<｜query｜>",
    "<｜authority｜>",
    "<｜domain｜>",
    "<｜title｜>",
    "<｜read_url｜>",
    "<｜deepseek_image｜>",
};
constexpr size_t kLeadingControlTokens = 3;

/// The file flags these as special: text for people leaves them out.
bool is_special(std::string_view token) {
  const auto place = std::ranges::find(kControlTokens, token) - kControlTokens.begin();
  return static_cast<size_t>(place) < kLeadingControlTokens || token == "<｜deepseek_image｜>";
}

/// The first split leaves no digit in any other piece.
bool is_digits(std::string_view piece) {
  return piece.find_first_of("0123456789") != std::string_view::npos;
}

uint64_t pair_key(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}
BpeVocabulary::Merge merge_of(uint64_t key) {
  return {static_cast<int32_t>(key >> 32), static_cast<int32_t>(key & 0xFFFFFFFF)};
}

class Trainer {
 public:
  Trainer(const std::vector<std::pair<std::string, uint64_t>>& pieces, const BpeTrainerOptions& options)
      : options_(options) {
    vocabulary_.tokens.reserve(options.token_count);
    for (size_t byte = 0; byte < kByteTokens; ++byte)
      (void)add_token(std::string(1, static_cast<char>(byte)));
    pieces_.reserve(pieces.size());
    for (const auto& [bytes, count] : pieces) {
      if (bytes.size() < 2) continue;
      Piece& piece = pieces_.emplace_back();
      piece.count = count;
      piece.tokens.reserve(bytes.size());
      for (const char byte : bytes)
        piece.tokens.push_back(static_cast<uint8_t>(byte));
      change_counts(pieces_.size() - 1, +1);
    }
    flush_changed();
  }

  BpeVocabulary run() {
    while (vocabulary_.tokens.size() < options_.token_count) {
      const std::optional<uint64_t> key = most_frequent();
      if (!key) {
        throw Error(
            ErrorCode::kInvalidArgument,
            fmt::format("the text gives {} tokens and {} are wanted; train on more text, or a smaller vocabulary",
                        vocabulary_.tokens.size(), options_.token_count));
      }
      apply(merge_of(*key));
    }
    return std::move(vocabulary_);
  }

 private:
  struct Piece {
    std::vector<int32_t> tokens;
    uint64_t count = 0;
  };
  struct Pair {
    uint64_t count = 0;
    std::vector<uint32_t> pieces;  ///< where it occurs or once did, perhaps twice
  };
  struct Candidate {
    uint64_t count = 0;
    uint64_t key = 0;
    /// The top of the queue: most occurrences, then the lowest tokens.
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : key > other.key;
    }
  };

  int32_t add_token(std::string bytes) {
    known_.insert(bytes);
    vocabulary_.tokens.push_back(std::move(bytes));
    return static_cast<int32_t>(vocabulary_.tokens.size() - 1);
  }

  [[nodiscard]] std::string bytes_of(BpeVocabulary::Merge merge) const {
    return vocabulary_.tokens[static_cast<size_t>(merge.left)] + vocabulary_.tokens[static_cast<size_t>(merge.right)];
  }

  /// Adds or takes away what a piece says about pairs.
  void change_counts(size_t index, int sign) {
    const Piece& piece = pieces_[index];
    for (size_t i = 0; i + 1 < piece.tokens.size(); ++i) {
      const uint64_t key = pair_key(piece.tokens[i], piece.tokens[i + 1]);
      Pair& pair = pairs_[key];
      if (sign > 0) {
        pair.count += piece.count;
        if (pair.pieces.empty() || pair.pieces.back() != index) pair.pieces.push_back(static_cast<uint32_t>(index));
      } else {
        pair.count -= piece.count;
      }
      changed_.insert(key);
    }
  }

  /// Queues the new counts; older entries of the same pairs are out of date and are dropped when they come up.
  void flush_changed() {
    for (const uint64_t key : changed_) {
      const Pair& pair = pairs_[key];
      if (pair.count > 1) queue_.push({pair.count, key});
    }
    changed_.clear();
  }

  std::optional<uint64_t> most_frequent() {
    while (!queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      if (pairs_[best.key].count != best.count) continue;  // out of date
      const std::string merged = bytes_of(merge_of(best.key));
      if (merged.size() <= options_.token_bytes_max && !known_.contains(merged)) return best.key;
    }
    return std::nullopt;
  }

  void apply(BpeVocabulary::Merge merge) {
    const int32_t merged = add_token(bytes_of(merge));
    vocabulary_.merges.push_back(merge);
    const std::vector<uint32_t> places = std::move(pairs_[pair_key(merge.left, merge.right)].pieces);
    for (const uint32_t index : places) {
      change_counts(index, -1);
      merge_in(pieces_[index].tokens, merge, merged);
      change_counts(index, +1);
    }
    flush_changed();
    pairs_.erase(pair_key(merge.left, merge.right));
  }

  static void merge_in(std::vector<int32_t>& tokens, BpeVocabulary::Merge merge, int32_t merged) {
    size_t out = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const bool is_pair = i + 1 < tokens.size() && tokens[i] == merge.left && tokens[i + 1] == merge.right;
      tokens[out++] = is_pair ? merged : tokens[i];
      if (is_pair) ++i;
    }
    tokens.resize(out);
  }

  BpeTrainerOptions options_;
  BpeVocabulary vocabulary_;
  std::unordered_set<std::string> known_;  ///< the tokens' bytes
  std::vector<Piece> pieces_;
  std::unordered_map<uint64_t, Pair> pairs_;
  std::unordered_set<uint64_t> changed_;
  std::priority_queue<Candidate> queue_;
};

Json split_step(std::string_view regex) {
  Json pattern = Json::make_object();
  pattern.set("Regex", Json::make_string(std::string(regex)));
  Json step = Json::make_object();
  step.set("type", Json::make_string("Split"));
  step.set("pattern", std::move(pattern));
  step.set("behavior", Json::make_string("Isolated"));
  step.set("invert", Json::make_bool(false));
  return step;
}

Json byte_level(bool trims_offsets) {
  Json step = Json::make_object();
  step.set("type", Json::make_string("ByteLevel"));
  step.set("add_prefix_space", Json::make_bool(false));
  step.set("trim_offsets", Json::make_bool(trims_offsets));
  step.set("use_regex", Json::make_bool(false));
  return step;
}

Json pre_tokenizer() {
  const std::vector<std::string_view> regexes = split_rule_regexes();
  Json::Array steps;
  for (const SplitRule rule : {SplitRule::kDigits, SplitRule::kCjk, SplitRule::kWords})
    steps.push_back(split_step(regexes[static_cast<size_t>(rule)]));
  steps.push_back(byte_level(true));
  Json sequence = Json::make_object();
  sequence.set("type", Json::make_string("Sequence"));
  sequence.set("pretokenizers", Json::make_array(std::move(steps)));
  return sequence;
}

Json added_token(std::string_view content, size_t id) {
  Json token = Json::make_object();
  token.set("id", Json::make_integer(static_cast<int64_t>(id)));
  token.set("content", Json::make_string(std::string(content)));
  for (const std::string_view flag : {"single_word", "lstrip", "rstrip", "normalized"})
    token.set(flag, Json::make_bool(false));
  token.set("special", Json::make_bool(is_special(content)));
  return token;
}

Json added_tokens(size_t learnt) {
  Json::Array list;
  list.reserve(kControlTokens.size());
  for (size_t i = 0; i < kControlTokens.size(); ++i)
    list.push_back(added_token(kControlTokens[i], i < kLeadingControlTokens ? i : i + learnt));
  return Json::make_array(std::move(list));
}

}  // namespace

void PieceCounts::add(std::string_view text, uint64_t times) {
  static const std::vector<SplitRule> rules = {SplitRule::kDigits, SplitRule::kCjk, SplitRule::kWords};
  text_bytes_ += times * text.size();
  PieceReader pieces(rules, text);
  while (const std::optional<std::string_view> piece = pieces.next()) {
    if (is_digits(*piece)) continue;
    const auto found = counts_.find(*piece);
    if (found != counts_.end()) {
      found->second += times;
    } else {
      counts_.emplace(*piece, times);
    }
  }
}

std::vector<std::pair<std::string, uint64_t>> PieceCounts::sorted() const {
  std::vector<std::pair<std::string, uint64_t>> pieces(counts_.begin(), counts_.end());
  std::ranges::sort(pieces);
  return pieces;
}

BpeVocabulary train_bpe(const std::vector<std::pair<std::string, uint64_t>>& pieces, const BpeTrainerOptions& options) {
  return Trainer(pieces, options).run();
}

const std::vector<std::string_view>& pocket_control_tokens() {
  static const std::vector<std::string_view> tokens(kControlTokens.begin(), kControlTokens.end());
  return tokens;
}

size_t bpe_token_count(size_t vocabulary_size) {
  const size_t vocabulary_min = kByteTokens + kControlTokens.size();
  if (vocabulary_size >= vocabulary_min) return vocabulary_size - kControlTokens.size();
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("a vocabulary of {} is too small: 256 single bytes and {} control tokens need {}",
                          vocabulary_size, kControlTokens.size(), vocabulary_min));
}

std::string write_tokenizer_json(const BpeVocabulary& vocabulary) {
  Json vocab = Json::make_object();
  Json::Object& entries = vocab.as_object();  // appended to directly: set() looks for the key among all
  entries.reserve(kLeadingControlTokens + vocabulary.tokens.size());
  for (size_t i = 0; i < kLeadingControlTokens; ++i)
    entries.push_back({std::string(kControlTokens[i]), Json::make_integer(static_cast<int64_t>(i))});
  for (const std::string& token : vocabulary.tokens)
    entries.push_back({byte_letters(token), Json::make_integer(static_cast<int64_t>(entries.size()))});
  const auto letters = [&](int32_t token) { return byte_letters(vocabulary.tokens[static_cast<size_t>(token)]); };
  Json::Array merges;
  merges.reserve(vocabulary.merges.size());
  for (const auto& [left, right] : vocabulary.merges)
    merges.push_back(Json::make_string(letters(left) + " " + letters(right)));

  Json model = Json::make_object();
  model.set("type", Json::make_string("BPE"));
  for (const std::string_view key : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"})
    model.set(key, Json());
  model.set("fuse_unk", Json::make_bool(false));
  model.set("byte_fallback", Json::make_bool(false));
  model.set("vocab", std::move(vocab));
  model.set("merges", Json::make_array(std::move(merges)));

  Json root = Json::make_object();
  root.set("version", Json::make_string("1.0"));
  root.set("truncation", Json());
  root.set("padding", Json());
  root.set("added_tokens", added_tokens(vocabulary.tokens.size()));
  root.set("normalizer", Json());
  root.set("pre_tokenizer", pre_tokenizer());
  root.set("post_processor", byte_level(false));
  root.set("decoder", byte_level(true));
  root.set("model", std::move(model));
  return write_json(root) + "\n";
}

}  // namespace tidepool
