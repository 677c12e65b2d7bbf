#include "text/tokenizer.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_file.h"
#include "text/tokenizer_tables.h"

namespace tidepool {
namespace {

using TokenKind = TokenizerTables::Kind;

/// The work of one call.
class TextEncoder {
 public:
  explicit TextEncoder(const TokenizerTables& tables) : tables_(tables), bpe_(tables.byte_ids, tables.merges) {}

  void append_plain(std::string_view text) {
    PieceReader pieces(tables_.split_rules, text);
    while (const std::optional<std::string_view> piece = pieces.next())
      bpe_.append(*piece, ids_);
  }

  void append(std::string_view text) {
    size_t position = 0;
    while (const auto match = tables_.added.find(text, position)) {
      append_plain(text.substr(position, match->begin - position));
      append_id(match->id);
      position = match->begin + match->bytes;
    }
    append_plain(text.substr(position));
  }

  void append_id(int32_t id) { ids_.push_back(id); }

  std::vector<int32_t> take() { return std::move(ids_); }

 private:
  const TokenizerTables& tables_;
  BpeEncoder bpe_;
  std::vector<int32_t> ids_;
};

void check_length(size_t bytes) {
  if (bytes <= Tokenizer::kTextBytesMax) return;
  throw Error(ErrorCode::kResourceExhausted,
              fmt::format("a text of {} bytes is too long to tokenize; at most {} are allowed", bytes,
                          Tokenizer::kTextBytesMax));
}

const TokenizerTables::Token* find(const TokenizerTables& tables, int32_t id) {
  if (id < 0 || static_cast<size_t>(id) >= tables.tokens.size()) return nullptr;
  return &tables.tokens[static_cast<size_t>(id)];
}

}  // namespace

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  return parse(read_file(path, kFileBytesMax), path.string());
}

Tokenizer Tokenizer::parse(std::string_view json, const std::string& name) {
  return Tokenizer(parse_tokenizer_file(json, name), name);
}

Tokenizer::Tokenizer(std::unique_ptr<const TokenizerTables> tables, std::string name)
    : tables_(std::move(tables)), name_(std::move(name)) {}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&& other) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&& other) noexcept = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  check_length(text.size());
  TextEncoder encoder(*tables_);
  encoder.append(text);
  return encoder.take();
}

std::vector<int32_t> Tokenizer::encode_plain(std::string_view text) const {
  check_length(text.size());
  TextEncoder encoder(*tables_);
  encoder.append_plain(text);
  return encoder.take();
}

std::vector<int32_t> Tokenizer::encode_runs(std::span<const TextRun> runs) const {
  size_t bytes = 0;
  for (const TextRun& run : runs)
    check_length(bytes += run.text.size());
  TextEncoder encoder(*tables_);
  std::string joined;
  for (size_t i = 0; i < runs.size(); ++i) {
    const TextRun& run = runs[i];
    if (!run.is_control_token) {
      const bool is_alone = joined.empty() && (i + 1 == runs.size() || runs[i + 1].is_control_token);
      if (is_alone) {
        encoder.append_plain(run.text);  // the usual case, without a copy
      } else {
        joined += run.text;
      }
      continue;
    }
    encoder.append_plain(joined);
    joined.clear();
    const std::optional<int32_t> id = find_added_token(run.text);
    if (!id) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{}: there is no added token \"{}\", which the prompt needs; this is "
                              "not the tokenizer of a DeepSeek-V4.1 model",
                              name_, run.text));
    }
    encoder.append_id(*id);
  }
  encoder.append_plain(joined);
  return encoder.take();
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string bytes;
  for (const int32_t id : ids)
    bytes += token_bytes(id);
  return bytes;
}

std::string_view Tokenizer::token_bytes(int32_t id) const noexcept {
  const TokenizerTables::Token* token = find(*tables_, id);
  return token ? std::string_view(token->bytes) : std::string_view();
}

std::string Tokenizer::token_letters(int32_t id) const {
  const TokenizerTables::Token* token = find(*tables_, id);
  if (!token) return {};
  return token->kind == TokenKind::kBytes ? byte_letters(token->bytes) : token->bytes;
}

bool Tokenizer::is_special(int32_t id) const noexcept {
  const TokenizerTables::Token* token = find(*tables_, id);
  return token != nullptr && token->is_special;
}

bool Tokenizer::is_added(int32_t id) const noexcept {
  const TokenizerTables::Token* token = find(*tables_, id);
  return token != nullptr && token->kind == TokenKind::kAdded;
}

std::optional<int32_t> Tokenizer::find_token(std::string_view bytes) const {
  if (const std::optional<int32_t> added = find_added_token(bytes)) return added;
  const auto found = tables_->ids_of_bytes.find(bytes);
  return found == tables_->ids_of_bytes.end() ? std::nullopt : std::optional(found->second);
}

std::optional<int32_t> Tokenizer::find_added_token(std::string_view text) const {
  return tables_->added.find_exactly(text);
}

size_t Tokenizer::vocabulary_size() const noexcept {
  return tables_->tokens.size();
}

}  // namespace tidepool
