#include "text/tokenizer_file.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/unicode.h"

namespace tidepool {
namespace {

namespace dom = simdjson::dom;

[[noreturn]] void refuse(ErrorCode code, const std::string& name, const std::string& reason) {
  throw Error(code, fmt::format("{}: {}", name, reason));
}

/// A value with the way to it, such as "model.merges[3]", for messages.
struct Value {
  const std::string& name;  ///< of the file
  std::string path;
  dom::element element;

  [[noreturn]] void refuse_it(std::string_view supported) const {
    std::string shown = simdjson::minify(element);
    constexpr size_t kShownMax = 120;
    if (shown.size() > kShownMax) shown = replace_invalid_utf8(std::string_view(shown).substr(0, kShownMax)) + "...";
    refuse(ErrorCode::kUnsupported, name, fmt::format("{} is {}; supported: {}", path, shown, supported));
  }

  [[nodiscard]] bool is_null() const { return element.is_null(); }

  [[nodiscard]] dom::object object() const {
    dom::object out;
    if (element.get(out) != simdjson::SUCCESS) refuse_it("an object");
    return out;
  }
  [[nodiscard]] dom::array array() const {
    dom::array out;
    if (element.get(out) != simdjson::SUCCESS) refuse_it("a list");
    return out;
  }
  [[nodiscard]] std::string_view string() const {
    std::string_view out;
    if (element.get(out) != simdjson::SUCCESS) refuse_it("a string");
    return out;
  }
  [[nodiscard]] bool boolean() const {
    bool out = false;
    if (element.get(out) != simdjson::SUCCESS) refuse_it("true or false");
    return out;
  }
  [[nodiscard]] int32_t token_id() const {
    int64_t out = 0;
    if (element.get(out) != simdjson::SUCCESS || out < 0) refuse_it("an integer that is not negative");
    if (out >= kTokenIdsMax) {
      refuse(ErrorCode::kResourceExhausted, name,
             fmt::format("{} is {}; ids must be below {}", path, out, kTokenIdsMax));
    }
    return static_cast<int32_t>(out);
  }

  [[nodiscard]] std::optional<Value> find(std::string_view key) const {
    dom::element child;
    if (object().at_key(key).get(child) != simdjson::SUCCESS) return std::nullopt;
    return Value{name, path.empty() ? std::string(key) : fmt::format("{}.{}", path, key), child};
  }
  [[nodiscard]] Value at(std::string_view key) const {
    std::optional<Value> child = find(key);
    if (!child) {
      refuse(ErrorCode::kUnsupported, name, fmt::format("there is no {} in {}", key, path.empty() ? "the file" : path));
    }
    return *std::move(child);
  }
  [[nodiscard]] std::vector<Value> items() const {
    std::vector<Value> out;
    for (const dom::element item : array())
      out.push_back({name, fmt::format("{}[{}]", path, out.size()), item});
    return out;
  }

  /// Refuses a key that is not in `known`: it might change what the tokenizer does.
  void check_keys(std::initializer_list<std::string_view> known) const {
    for (const dom::key_value_pair pair : object()) {
      if (std::ranges::find(known, pair.key) == known.end()) {
        Value{name, path.empty() ? std::string(pair.key) : fmt::format("{}.{}", path, pair.key), pair.value}.refuse_it(
            "a file without this key");
      }
    }
  }
  void check_string(std::string_view expected) const {
    if (string() != expected) refuse_it(fmt::format("\"{}\"", expected));
  }
  /// Refuses anything but absence and null.
  void check_null(std::string_view key) const {
    const std::optional<Value> child = find(key);
    if (child && !child->is_null()) child->refuse_it("null");
  }
  /// Refuses anything but absence and `expected`.
  void check_boolean(std::string_view key, bool expected) const {
    const std::optional<Value> child = find(key);
    if (child && child->boolean() != expected) child->refuse_it(expected ? "true" : "false");
  }
};

void check_normalizer(const Value& normalizer) {
  if (normalizer.is_null()) return;
  const std::string_view supported = "null or an empty sequence";
  if (normalizer.at("type").string() != "Sequence" || !normalizer.at("normalizers").items().empty()) {
    normalizer.refuse_it(supported);
  }
}

/// The options of a byte-level step that neither a post-processor nor a decoder looks at are not checked.
void check_byte_level(const Value& step) {
  step.at("type").check_string("ByteLevel");
  step.check_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
}

SplitRule parse_split(const Value& split) {
  split.at("type").check_string("Split");
  split.check_keys({"type", "pattern", "behavior", "invert"});
  split.at("behavior").check_string("Isolated");
  split.check_boolean("invert", false);
  split.at("pattern").check_keys({"Regex"});
  const Value regex = split.at("pattern").at("Regex");
  const std::optional<SplitRule> rule = find_split_rule(regex.string());
  if (!rule) regex.refuse_it(fmt::format("the expressions {}", fmt::join(split_rule_regexes(), "   ")));
  return *rule;
}

std::vector<SplitRule> parse_pre_tokenizer(const Value& pre_tokenizer) {
  pre_tokenizer.at("type").check_string("Sequence");
  pre_tokenizer.check_keys({"type", "pretokenizers"});
  const std::vector<Value> steps = pre_tokenizer.at("pretokenizers").items();
  if (steps.empty()) pre_tokenizer.refuse_it("Split steps and then one ByteLevel step");
  constexpr size_t kStepsMax = 16;
  if (steps.size() > kStepsMax) pre_tokenizer.refuse_it(fmt::format("at most {} steps", kStepsMax));
  std::vector<SplitRule> rules;
  for (size_t i = 0; i + 1 < steps.size(); ++i)
    rules.push_back(parse_split(steps[i]));
  const Value& last = steps.back();
  check_byte_level(last);
  // Absence of either means true.
  if (last.at("add_prefix_space").boolean()) last.at("add_prefix_space").refuse_it("false");
  if (last.at("use_regex").boolean()) last.at("use_regex").refuse_it("false");
  return rules;
}

/// Everything but the vocabulary, the merges and the added tokens. Returns the splits.
std::vector<SplitRule> check_format(const Value& root) {
  root.check_keys({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                   "decoder", "model"});
  root.check_null("truncation");
  root.check_null("padding");
  if (const auto normalizer = root.find("normalizer")) check_normalizer(*normalizer);
  if (const auto post_processor = root.find("post_processor"); post_processor && !post_processor->is_null()) {
    check_byte_level(*post_processor);
  }
  check_byte_level(root.at("decoder"));

  const Value model = root.at("model");
  model.at("type").check_string("BPE");
  model.check_keys({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                    "byte_fallback", "ignore_merges", "vocab", "merges"});
  for (const std::string_view key : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
    model.check_null(key);
  }
  for (const std::string_view key : {"fuse_unk", "byte_fallback", "ignore_merges"})
    model.check_boolean(key, false);
  return parse_pre_tokenizer(root.at("pre_tokenizer"));
}

/// Fills the tables from a file whose format is checked.
class TableBuilder {
 public:
  TableBuilder(const Value& root, TokenizerTables& tables) : root_(root), tables_(tables) {}

  void read_vocabulary() {
    const Value vocabulary = root_.at("model").at("vocab");
    const dom::object entries = vocabulary.object();
    ids_of_text_.reserve(entries.size());
    for (const dom::key_value_pair entry : entries) {
      int64_t number = 0;
      // The way to a value is put together only for a message, as there are 128,000 of them.
      const bool is_id = entry.value.get(number) == simdjson::SUCCESS && number >= 0 && number < kTokenIdsMax;
      const int32_t id = is_id
                             ? static_cast<int32_t>(number)
                             : Value{root_.name, fmt::format("model.vocab[\"{}\"]", entry.key), entry.value}.token_id();
      if (!ids_of_text_.emplace(entry.key, id).second) corrupt("model.vocab has \"{}\" twice", entry.key);
      add_base_token(entry.key, id);
    }
    for (int byte = 0; byte < 256; ++byte) {
      const std::string letter = byte_letters(std::string(1, static_cast<char>(byte)));
      const auto found = ids_of_text_.find(letter);
      if (found == ids_of_text_.end()) corrupt("model.vocab has no token \"{}\" for byte {}", letter, byte);
      tables_.byte_ids.push_back(found->second);
    }
  }

  void read_merges() {
    const dom::array merges = root_.at("model").at("merges").array();
    tables_.merges = BpeMerges(merges.size());
    size_t index = 0;
    for (const dom::element merge : merges) {
      const auto [left, right] = merge_parts(merge, index);
      merged_text_.assign(left).append(right);
      const int32_t merged = id_of_text(merged_text_, index);
      if (!tables_.merges.add(id_of_text(left, index), id_of_text(right, index), merged)) {
        corrupt("model.merges[{}] merges \"{}\" and \"{}\" a second time", index, left, right);
      }
      ++index;
    }
  }

  void read_added_tokens() {
    const std::optional<Value> list = root_.find("added_tokens");
    if (!list || list->is_null()) return;
    for (const Value& token : list->items())
      add_added_token(token);
    tables_.added.finish();
  }

  /// Last, when no token moves any more: its bytes become a key.
  void index_bytes() {
    tables_.ids_of_bytes.reserve(tables_.tokens.size());
    for (size_t id = 0; id < tables_.tokens.size(); ++id) {
      const TokenizerTables::Token& token = tables_.tokens[id];
      if (token.kind != TokenizerTables::Kind::kBytes) continue;
      tables_.ids_of_bytes.emplace(token.bytes, static_cast<int32_t>(id));
    }
  }

 private:
  template <typename... Arguments>
  [[noreturn]] void corrupt(fmt::format_string<Arguments...> format, Arguments&&... arguments) const {
    refuse(ErrorCode::kCorrupt, root_.name, fmt::format(format, std::forward<Arguments>(arguments)...));
  }

  TokenizerTables::Token& token_at(int32_t id) {
    const auto index = static_cast<size_t>(id);
    if (index >= tables_.tokens.size()) tables_.tokens.resize(index + 1);
    return tables_.tokens[index];
  }

  void add_base_token(std::string_view text, int32_t id) {
    TokenizerTables::Token& token = token_at(id);
    if (token.kind != TokenizerTables::Kind::kNone) corrupt("model.vocab gives id {} to \"{}\" and another", id, text);
    std::optional<std::string> bytes = bytes_of_letters(text);
    token.kind = bytes ? TokenizerTables::Kind::kBytes : TokenizerTables::Kind::kLiteral;
    token.bytes = bytes ? *std::move(bytes) : std::string(text);
    if (token.bytes.empty()) corrupt("model.vocab has an empty token, id {}", id);
  }

  std::pair<std::string_view, std::string_view> merge_parts(dom::element merge, size_t index) const {
    std::string_view text;
    if (merge.get(text) == simdjson::SUCCESS) {
      const size_t space = text.find(' ');
      if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
        return {text.substr(0, space), text.substr(space + 1)};
      }
    }
    dom::array pair;
    std::string_view left;
    std::string_view right;
    if (merge.get(pair) == simdjson::SUCCESS && pair.size() == 2 && pair.at(0).get(left) == simdjson::SUCCESS &&
        pair.at(1).get(right) == simdjson::SUCCESS) {
      return {left, right};
    }
    Value{root_.name, fmt::format("model.merges[{}]", index), merge}.refuse_it(
        "two token texts, in one string with a space between or in a list");
  }

  int32_t id_of_text(std::string_view text, size_t merge_index) const {
    const auto found = ids_of_text_.find(text);
    if (found == ids_of_text_.end()) {
      corrupt("model.merges[{}] needs a token \"{}\", which is not in model.vocab", merge_index, text);
    }
    return found->second;
  }

  void add_added_token(const Value& entry) {
    entry.check_keys({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    // "normalized" may be anything: with no normalizer it changes nothing.
    for (const std::string_view key : {"single_word", "lstrip", "rstrip"})
      entry.check_boolean(key, false);
    const int32_t id = entry.at("id").token_id();
    const Value content_value = entry.at("content");
    const std::string_view content = content_value.string();
    if (content.empty() || content.size() > kAddedTokenBytesMax) {
      content_value.refuse_it(fmt::format("1 to {} bytes", kAddedTokenBytesMax));
    }
    const auto [place, is_new] = added_ids_.emplace(content, id);
    if (!is_new) corrupt("{}: \"{}\" is an added token already, with id {}", entry.path, content, place->second);
    const auto base = ids_of_text_.find(content);
    if (base != ids_of_text_.end() && base->second != id) {
      corrupt("{}: \"{}\" has id {} here and id {} in model.vocab", entry.path, content, id, base->second);
    }
    const std::optional<Value> special = entry.find("special");
    TokenizerTables::Token& token = token_at(id);
    const bool is_free = token.kind == TokenizerTables::Kind::kNone;
    // One that byte pair encoding makes too must stand for the same bytes.
    if (!is_free && (token.kind == TokenizerTables::Kind::kAdded || token.bytes != content)) {
      corrupt("{}: id {} of \"{}\" belongs to another token already", entry.path, id, content);
    }
    token = {std::string(content), TokenizerTables::Kind::kAdded, special && special->boolean()};
    tables_.added.add(content, id);
  }

  const Value& root_;
  TokenizerTables& tables_;
  std::unordered_map<std::string_view, int32_t> ids_of_text_;  ///< the vocabulary as written; keys lie in the document
  std::unordered_map<std::string_view, int32_t> added_ids_;
  std::string merged_text_;
};

}  // namespace

std::unique_ptr<const TokenizerTables> parse_tokenizer_file(std::string_view json, const std::string& name) {
  dom::parser parser;
  dom::element root_element;
  const simdjson::error_code error = parser.parse(json.data(), json.size()).get(root_element);
  if (error != simdjson::SUCCESS) {
    refuse(ErrorCode::kCorrupt, name, fmt::format("is not valid JSON: {}", simdjson::error_message(error)));
  }
  auto tables = std::make_unique<TokenizerTables>();
  const Value root{name, "", root_element};
  tables->split_rules = check_format(root);
  TableBuilder builder(root, *tables);
  builder.read_vocabulary();
  builder.read_merges();
  builder.read_added_tokens();
  builder.index_bytes();
  return tables;
}

}  // namespace tidepool
