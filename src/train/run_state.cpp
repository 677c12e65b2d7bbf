#include "train/run_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/error.h"
#include "formats/safetensors.h"

namespace tidepool {

namespace {

constexpr std::string_view kVersionKey = "tidepool_run_state";
constexpr std::string_view kVersion = "1";
constexpr std::string_view kCounterPrefix = "counter.";

using Metadata = std::span<const std::pair<std::string, std::string>>;

[[noreturn]] void refuse(const std::filesystem::path& file, std::string_view what) {
  throw Error(ErrorCode::kCorrupt,
              fmt::format("{}: {}; it is not the state of this training run. Remove it to start from the beginning",
                          file.string(), what));
}

class MetadataReader {
 public:
  MetadataReader(const std::filesystem::path& file, Metadata metadata) : file_(file), metadata_(metadata) {}

  [[nodiscard]] const std::string& text(std::string_view key) const {
    const auto found = std::ranges::find(metadata_, key, &std::pair<std::string, std::string>::first);
    if (found == metadata_.end()) refuse(file_, fmt::format("it has no \"{}\"", key));
    return found->second;
  }
  template <typename Number>
  [[nodiscard]] Number number(std::string_view key) const {
    const std::string& digits = text(key);
    Number value{};
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size())
      refuse(file_, fmt::format("\"{}\" is \"{}\" and not a number", key, digits));
    return value;
  }

 private:
  const std::filesystem::path& file_;
  Metadata metadata_;
};

void read_buffer(const std::filesystem::path& path, const SafetensorsFile& file, const NamedBuffer& buffer) {
  const SafetensorsFile::Entry* found = file.find(buffer.name);
  if (found == nullptr) refuse(path, fmt::format("it has no \"{}\"", buffer.name));
  const TensorView tensor = file.tensor(*found);
  if (tensor.dtype != Dtype::kF32 || tensor.bytes != buffer.values.size_bytes()) {
    refuse(path, fmt::format("\"{}\" has {} bytes of {} and should have {} of F32", buffer.name, tensor.bytes,
                             dtype_name(tensor.dtype), buffer.values.size_bytes()));
  }
  if (tensor.bytes > 0) std::memcpy(buffer.values.data(), tensor.data, tensor.bytes);
}

}  // namespace

void save_run_state(const std::filesystem::path& file, const RunState& state, std::span<const NamedBuffer> buffers) {
  std::vector<std::pair<std::string, std::string>> metadata = {
      {std::string(kVersionKey), std::string(kVersion)}, {"recipe", state.recipe},
      {"stage", fmt::format("{}", state.stage)},         {"step", fmt::format("{}", state.step)},
      {"tokens", fmt::format("{}", state.tokens)},       {"seconds", fmt::format("{}", state.seconds)}};
  for (const auto& [name, value] : state.counters)
    metadata.emplace_back(fmt::format("{}{}", kCounterPrefix, name), fmt::format("{}", value));
  std::vector<TensorToWrite> tensors;
  tensors.reserve(buffers.size());
  for (const NamedBuffer& buffer : buffers) {
    tensors.push_back(
        {buffer.name, Dtype::kF32, {static_cast<int64_t>(buffer.values.size())}, std::as_bytes(buffer.values)});
  }
  write_safetensors(file, tensors, metadata);
}

RunState load_run_state(const std::filesystem::path& file, const std::string& recipe) {
  const SafetensorsFile stored(file);
  const Metadata metadata = stored.metadata();
  const MetadataReader reader(file, metadata);
  if (reader.text(kVersionKey) != kVersion)
    refuse(file, fmt::format("its format is version {} and this program reads {}", reader.text(kVersionKey), kVersion));
  RunState state;
  state.recipe = reader.text("recipe");
  if (state.recipe != recipe) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} belongs to another recipe, configuration or data; train into another folder, or remove "
                            "it to start from the beginning",
                            file.string()));
  }
  state.stage = reader.number<uint64_t>("stage");
  state.step = reader.number<uint64_t>("step");
  state.tokens = reader.number<uint64_t>("tokens");
  state.seconds = reader.number<double>("seconds");
  for (const auto& [key, value] : metadata) {
    if (key.starts_with(kCounterPrefix))
      state.counters.emplace_back(key.substr(kCounterPrefix.size()), reader.number<uint64_t>(key));
  }
  return state;
}

void load_run_buffers(const std::filesystem::path& file, std::span<const NamedBuffer> buffers) {
  const SafetensorsFile stored(file);
  if (stored.entries().size() != buffers.size())
    refuse(file, fmt::format("it holds {} buffers and should hold {}", stored.entries().size(), buffers.size()));
  for (const NamedBuffer& buffer : buffers)
    read_buffer(file, stored, buffer);
}

}  // namespace tidepool
