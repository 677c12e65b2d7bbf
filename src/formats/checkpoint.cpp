#include "formats/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <simdjson.h>

#include "base/check.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "formats/safetensors.h"

namespace tidepool {
namespace {

using Part = ExpectedTensor::Part;

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";
/// The released index has 96,085 lines and about 7 MB.
constexpr uint64_t kIndexBytesMax = 1 << 28;
constexpr size_t kShardsMax = 4096;
constexpr size_t kListedMax = 20;

/// A tensor as found. Names are borrowed from the file's entries.
struct Found {
  std::string_view name;
  const SafetensorsFile* file = nullptr;
  const SafetensorsFile::Entry* entry = nullptr;
  Part part = Part::kBackbone;
};

struct IndexLine {
  std::string name;
  std::string shard;
};

/// The weight map of an index, sorted by name.
std::vector<IndexLine> load_index(const std::filesystem::path& path) {
  const std::string origin = path.string();
  const auto corrupt = [&](const std::string& what) {
    return Error(ErrorCode::kCorrupt, fmt::format("{}: {}", origin, what));
  };
  const std::string text = read_file(path, kIndexBytesMax);
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  if (const auto error = parser.parse(text).get(root); error != simdjson::SUCCESS) {
    throw corrupt(fmt::format("not JSON: {}", simdjson::error_message(error)));
  }
  simdjson::dom::object map;
  if (root["weight_map"].get(map) != simdjson::SUCCESS) throw corrupt("weight_map is missing or not an object");
  std::vector<IndexLine> lines;
  lines.reserve(map.size());
  for (const auto& [name, value] : map) {
    std::string_view shard;
    if (value.get(shard) != simdjson::SUCCESS) {
      throw corrupt(fmt::format("weight_map: the file of \"{}\" is not a string", printable(name)));
    }
    // A shard lies in the folder itself; anything else could read files elsewhere.
    if (shard.empty() || shard == "." || shard == ".." ||
        shard.find_first_of(std::string_view("/\\\0", 3)) != shard.npos) {
      throw corrupt(
          fmt::format("weight_map: \"{}\" is not a file name (tensor \"{}\")", printable(shard), printable(name)));
    }
    lines.push_back({std::string(name), std::string(shard)});
  }
  std::sort(lines.begin(), lines.end(), [](const IndexLine& a, const IndexLine& b) { return a.name < b.name; });
  for (size_t i = 1; i < lines.size(); ++i) {
    if (lines[i].name == lines[i - 1].name) {
      throw corrupt(fmt::format("weight_map names tensor \"{}\" twice", printable(lines[i].name)));
    }
  }
  return lines;
}

std::string shape_text(Dtype dtype, const std::vector<int64_t>& shape) {
  return fmt::format("{} [{}]", dtype_name(dtype), fmt::join(shape, ","));
}

/// Collects what is wrong with a folder: the first lines in full, and the count.
class Complaints {
 public:
  void add(std::string line) {
    ++count_;
    if (lines_.size() < kListedMax) lines_.push_back(std::move(line));
  }

  void throw_if_any(const std::filesystem::path& folder, const std::string& what, const std::string& remedy) const {
    if (count_ == 0) return;
    std::string message = fmt::format("{}: {} {}:", folder.string(), count_, what);
    for (const std::string& line : lines_)
      message += "\n  " + line;
    if (count_ > lines_.size()) message += fmt::format("\n  and {} more", count_ - lines_.size());
    throw Error(ErrorCode::kCorrupt, message + "\n" + remedy);
  }

 private:
  size_t count_ = 0;
  std::vector<std::string> lines_;
};

constexpr const char* kDownloadAgain = "The folder is not one complete checkpoint; download it again.";

}  // namespace

struct Checkpoint::Impl {
  std::filesystem::path folder;
  ModelConfig config;
  std::vector<SafetensorsFile> files;
  std::vector<Found> tensors;  // sorted by name

  void open_files();
  void open_shards(const std::vector<IndexLine>& index);
  void collect();
  void check_index(const std::vector<IndexLine>& index) const;
  void drop_absent_parts();
  void bind();

  [[nodiscard]] const Found* find(std::string_view name) const {
    const auto found = std::lower_bound(tensors.begin(), tensors.end(), name,
                                        [](const Found& tensor, std::string_view key) { return tensor.name < key; });
    return found != tensors.end() && found->name == name ? &*found : nullptr;
  }
};

namespace {

/// Why the found tensor is not the expected one, or "".
std::string mismatch(const ExpectedTensor& expected, const SafetensorsFile::Entry& entry) {
  // Repacked checkpoints call packed pairs of codes U8, the release I8; the bytes are the same.
  const bool is_dtype_good =
      entry.dtype == expected.dtype || (expected.dtype == Dtype::kI8 && entry.dtype == Dtype::kU8);
  if (is_dtype_good && entry.shape == expected.shape) return "";
  std::string line = fmt::format("mis-shaped: {}: expected {}, found {}", expected.name,
                                 shape_text(expected.dtype, expected.shape), shape_text(entry.dtype, entry.shape));
  if (expected.dtype == Dtype::kF8E8m0 && expected.shape.size() == 2 && entry.shape.size() == 2 &&
      entry.shape[0] == (expected.shape[0] + 3) / 4 && entry.shape[1] == (expected.shape[1] + 3) / 4) {
    line += " (scales of 128x128 tiles, as DeepSeek-V4 has them; V4.1 has 32x32)";
  }
  return line;
}

std::string extra_line(const Found& found) {
  std::string line =
      fmt::format("extra: {} ({})", printable(found.name), shape_text(found.entry->dtype, found.entry->shape));
  if (found.name.ends_with(".weight_scale_inv")) line += " (an older packaging: the release has .scale)";
  if (found.name.starts_with("model.")) line += " (a converted packaging: released names have no \"model.\")";
  return line;
}

}  // namespace

void Checkpoint::Impl::open_files() {
  if (std::filesystem::exists(folder / kIndexName)) {
    const std::vector<IndexLine> index = load_index(folder / kIndexName);
    open_shards(index);
    collect();
    check_index(index);
    return;
  }
  if (!std::filesystem::exists(folder / kSingleName)) {
    throw Error(ErrorCode::kNotFound, fmt::format("{}: neither {} nor {} is there; point at a downloaded model folder",
                                                  folder.string(), kIndexName, kSingleName));
  }
  files.emplace_back(folder / kSingleName);
  collect();
}

void Checkpoint::Impl::open_shards(const std::vector<IndexLine>& index) {
  std::map<std::string_view, std::string_view> shards;  // file name -> one of its tensors
  for (const IndexLine& line : index)
    shards.emplace(line.shard, line.name);
  if (shards.size() > kShardsMax) {
    throw Error(ErrorCode::kResourceExhausted, fmt::format("{}: {} files named, more than the {} allowed",
                                                           (folder / kIndexName).string(), shards.size(), kShardsMax));
  }
  Complaints missing;
  for (const auto& [shard, tensor] : shards) {
    if (!std::filesystem::exists(folder / shard)) {
      missing.add(fmt::format("{} (for example for {})", printable(shard), printable(tensor)));
    }
  }
  missing.throw_if_any(folder, fmt::format("files named by {} are missing", kIndexName), kDownloadAgain);
  files.reserve(shards.size());
  for (const auto& [shard, tensor] : shards)
    files.emplace_back(folder / shard);
}

void Checkpoint::Impl::collect() {
  for (const SafetensorsFile& file : files) {
    for (const SafetensorsFile::Entry& entry : file.entries())
      tensors.push_back({entry.name, &file, &entry});
  }
  std::sort(tensors.begin(), tensors.end(), [](const Found& a, const Found& b) { return a.name < b.name; });
  Complaints twins;
  for (size_t i = 1; i < tensors.size(); ++i) {
    if (tensors[i].name != tensors[i - 1].name) continue;
    twins.add(fmt::format("{}: in {} and {}", printable(tensors[i].name),
                          tensors[i - 1].file->path().filename().string(),
                          tensors[i].file->path().filename().string()));
  }
  twins.throw_if_any(folder, "tensors are in two files", kDownloadAgain);
}

void Checkpoint::Impl::check_index(const std::vector<IndexLine>& index) const {
  Complaints wrong;
  size_t at = 0;  // both lists are sorted by name
  for (const IndexLine& line : index) {
    while (at < tensors.size() && tensors[at].name < line.name) {
      wrong.add(fmt::format("{}: in {}, but not in the index", printable(tensors[at].name),
                            tensors[at].file->path().filename().string()));
      ++at;
    }
    const bool is_there = at < tensors.size() && tensors[at].name == line.name;
    if (!is_there || tensors[at].file->path().filename() != line.shard) {
      wrong.add(fmt::format("{}: {} lacks it, where the index says it is", printable(line.name), line.shard));
    }
    if (is_there) ++at;
  }
  for (; at < tensors.size(); ++at) {
    wrong.add(fmt::format("{}: in {}, but not in the index", printable(tensors[at].name),
                          tensors[at].file->path().filename().string()));
  }
  wrong.throw_if_any(folder, fmt::format("tensors disagree with {}", kIndexName), kDownloadAgain);
}

/// A folder without any tensor of the draft head or of the vision tower is that model without it. Without Engram it
/// would be another model, so that part stays required.
void Checkpoint::Impl::drop_absent_parts() {
  const auto has_prefix = [this](std::string_view prefix) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const Found& found) { return found.name.starts_with(prefix); });
  };
  if (config.dspark && !has_prefix("mtp.")) {
    log_warning("{}: no draft head (mtp.*) in the files; running without drafts", folder.string());
    config.dspark.reset();
    config.compress_ratios.resize(static_cast<size_t>(config.num_hidden_layers));
  }
  if (config.vision && !has_prefix("vision.") && !has_prefix("aligner.") && !has_prefix("image_")) {
    log_warning("{}: no vision tower (vision.*) in the files; running without images", folder.string());
    config.vision.reset();
  }
}

void Checkpoint::Impl::bind() {
  std::vector<ExpectedTensor> expected = expected_tensors(config);
  std::sort(expected.begin(), expected.end(),
            [](const ExpectedTensor& a, const ExpectedTensor& b) { return a.name < b.name; });
  Complaints wrong;
  size_t at = 0;
  for (const ExpectedTensor& line : expected) {
    for (; at < tensors.size() && tensors[at].name < line.name; ++at)
      wrong.add(extra_line(tensors[at]));
    if (at == tensors.size() || tensors[at].name != line.name) {
      wrong.add(fmt::format("missing: {} ({})", line.name, shape_text(line.dtype, line.shape)));
      continue;
    }
    tensors[at].part = line.part;
    if (std::string why = mismatch(line, *tensors[at].entry); !why.empty()) wrong.add(std::move(why));
    ++at;
  }
  for (; at < tensors.size(); ++at)
    wrong.add(extra_line(tensors[at]));
  wrong.throw_if_any(folder, "tensors do not fit config.json",
                     "Supported are the released DeepSeek-V4.1-Flash files, unconverted and complete.");
}

std::shared_ptr<const Checkpoint> Checkpoint::open(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder)) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("{}: not a folder; point at a downloaded model folder", folder.string()));
  }
  auto impl = std::make_unique<Impl>();
  impl->folder = folder;
  impl->config = load_config(folder / "config.json");
  impl->open_files();
  impl->drop_absent_parts();
  impl->bind();
  // make_shared cannot reach the private constructor.
  return std::shared_ptr<const Checkpoint>(new Checkpoint(std::move(impl)));
}

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::~Checkpoint() = default;

const ModelConfig& Checkpoint::config() const {
  return impl_->config;
}

const std::filesystem::path& Checkpoint::folder() const {
  return impl_->folder;
}

bool Checkpoint::has_part(ExpectedTensor::Part part) const {
  switch (part) {
    case Part::kBackbone: return true;
    case Part::kEngram: return impl_->config.engram.has_value();
    case Part::kDspark: return impl_->config.dspark.has_value();
    case Part::kVision: return impl_->config.vision.has_value();
  }
  TIDEPOOL_CHECK(false, "not a part");
}

bool Checkpoint::has(std::string_view name) const {
  return impl_->find(name) != nullptr;
}

TensorView Checkpoint::tensor(std::string_view name) const {
  const Found* found = impl_->find(name);
  TIDEPOOL_CHECK(found != nullptr, fmt::format("no tensor {}", name));
  return found->file->tensor(*found->entry);
}

void Checkpoint::advise(std::string_view name, MappedFile::Access access) const {
  const Found* found = impl_->find(name);
  TIDEPOOL_CHECK(found != nullptr, fmt::format("no tensor {}", name));
  found->file->advise(*found->entry, access);
}

MatrixView Checkpoint::matrix(std::string_view name) const {
  const std::string weight_name = fmt::format("{}.weight", name);
  const TensorView weight = tensor(has(weight_name) ? std::string_view(weight_name) : name);
  TIDEPOOL_CHECK(weight.shape.size() == 2, fmt::format("{} is not a matrix", name));
  MatrixView view;
  view.out = static_cast<size_t>(weight.shape[0]);
  view.in = static_cast<size_t>(weight.shape[1]);
  view.data = weight.data;
  if (weight.dtype == Dtype::kBf16 || weight.dtype == Dtype::kF32) {
    view.format = weight.dtype == Dtype::kBf16 ? MatrixFormat::kBf16 : MatrixFormat::kFloat32;
    return view;
  }
  const TensorView scale = tensor(fmt::format("{}.scale", name));
  view.scales = reinterpret_cast<const uint8_t*>(scale.data);
  if (weight.dtype == Dtype::kF8E4m3) {
    view.format = MatrixFormat::kFp8Tile32;
    TIDEPOOL_CHECK(static_cast<size_t>(scale.shape[0]) == (view.out + 31) / 32,
                   fmt::format("{} has no 32x32 tiles: a table, to be read by tensor()", name));
    return view;
  }
  TIDEPOOL_CHECK(weight.dtype == Dtype::kI8 || weight.dtype == Dtype::kU8, fmt::format("{} is not a matrix", name));
  view.format = MatrixFormat::kFp4Block32;
  view.in *= 2;
  return view;
}

std::vector<Checkpoint::TensorInfo> Checkpoint::tensors() const {
  std::vector<TensorInfo> result;
  result.reserve(impl_->tensors.size());
  for (const Found& found : impl_->tensors) {
    result.push_back({std::string(found.name), found.entry->dtype, found.entry->shape, found.entry->bytes, found.part});
  }
  return result;
}

}  // namespace tidepool
