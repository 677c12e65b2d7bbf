#include "train/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "text/json.h"

namespace tidepool {
namespace {

constexpr uint64_t kCorpusBytesMax = uint64_t{4} << 30;
constexpr int64_t kManifestFormat = 1;

[[noreturn]] void refuse(const std::string& name, std::string_view reason) {
  throw Error(ErrorCode::kCorrupt, fmt::format("{}: {}; run tools/fetch_corpus.sh again", name, reason));
}

Json parse(std::string_view text, const std::string& name) {
  try {
    return parse_json(text, {.depth_max = 16});
  } catch (const Error& error) {
    refuse(name, error.what());
  }
}

const std::string& string_of(const Json& object, std::string_view key, const std::string& name) {
  const Json* value = object.find(key);
  if (value == nullptr || !value->is_string()) refuse(name, fmt::format("\"{}\" is not there, or no string", key));
  return value->as_string();
}

/// A file of the corpus' own folder: a manifest names no others.
CorpusFile file_of(const Json& entry, std::string_view split, const std::string& name) {
  const Json* value = entry.find(split);
  if (value == nullptr) refuse(name, fmt::format("a source has no \"{}\"", split));
  const std::string& file = string_of(*value, "file", name);
  if (file.empty() || file.find('/') != std::string::npos || file.front() == '.') {
    refuse(name, fmt::format("\"{}\" is not the name of a file beside it", file));
  }
  const Json* documents = value->find("documents");
  if (documents == nullptr) return {file, std::nullopt};
  const bool is_count = documents->kind() == Json::Kind::kInteger && documents->try_int64().value_or(-1) >= 0;
  if (!is_count) refuse(name, fmt::format("\"documents\" of {} is not a number of documents", file));
  return {file, documents->try_int64()};
}

}  // namespace

std::string_view split_name(Split split) {
  return split == Split::kTrain ? "train" : "heldout";
}

std::vector<CorpusEntry> parse_corpus_manifest(std::string_view json, const std::string& name) {
  const Json root = parse(json, name);
  const Json* format = root.find("format");
  if (format == nullptr || format->kind() != Json::Kind::kInteger || format->try_int64() != kManifestFormat) {
    refuse(name, fmt::format("\"format\" is not {}", kManifestFormat));
  }
  const Json* sources = root.find("sources");
  if (sources == nullptr || !sources->is_array()) refuse(name, "\"sources\" is not there, or no list");
  std::vector<CorpusEntry> entries;
  entries.reserve(sources->as_array().size());
  for (const Json& source : sources->as_array()) {
    entries.push_back(
        {string_of(source, "name", name), file_of(source, "train", name), file_of(source, "heldout", name)});
  }
  return entries;
}

std::vector<CorpusDocument> parse_corpus_documents(std::string_view lines, const std::string& name) {
  std::vector<CorpusDocument> documents;
  documents.reserve(static_cast<size_t>(std::ranges::count(lines, '\n')) + 1);
  size_t number = 0;
  while (!lines.empty()) {
    ++number;
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(line.size() + 1, lines.size()));
    if (line.empty()) continue;
    const std::string place = fmt::format("{}:{}", name, number);
    const Json document = parse(line, place);
    documents.push_back({string_of(document, "name", place), string_of(document, "text", place)});
  }
  return documents;
}

Corpus Corpus::load(const std::filesystem::path& folder) {
  const std::filesystem::path manifest = folder / "manifest.json";
  const auto read = [&](const CorpusFile& file) {
    const std::string path = (folder / file.name).string();
    std::vector<CorpusDocument> documents = parse_corpus_documents(read_file(path, kCorpusBytesMax), path);
    // A file that was cut short, or is of another time than the manifest.
    if (file.documents && static_cast<uint64_t>(*file.documents) != documents.size()) {
      refuse(path, fmt::format("it has {} documents, and manifest.json says {}", documents.size(), *file.documents));
    }
    return documents;
  };
  std::vector<CorpusSource> sources;
  const std::vector<CorpusEntry> entries =
      parse_corpus_manifest(read_file(manifest, kCorpusBytesMax), manifest.string());
  sources.reserve(entries.size());
  for (const CorpusEntry& entry : entries)
    sources.push_back({entry.name, read(entry.train), read(entry.heldout)});
  return Corpus(std::move(sources));
}

const CorpusSource* Corpus::find(std::string_view name) const {
  const auto found = std::ranges::find(sources_, name, &CorpusSource::name);
  return found == sources_.end() ? nullptr : &*found;
}

}  // namespace tidepool
