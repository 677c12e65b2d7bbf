#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/temp_folder.h"
#include "formats/safetensors.h"

namespace tidepool::golden {

/// A copy of the tiny golden checkpoint with something changed, for tests that must notice. Lives as long as this.
class MutatedCheckpoint {
 public:
  /// Pairs of text to find in config.json and what to put there; each must occur exactly once.
  using ConfigEdits = std::vector<std::pair<std::string, std::string>>;
  /// May change a tensor's bytes; returns false to leave the tensor out.
  using TensorEdit = std::function<bool(const std::string& name, std::vector<std::byte>& data)>;

  explicit MutatedCheckpoint(const ConfigEdits& config_edits, const TensorEdit& tensor_edit = nullptr) {
    const std::filesystem::path source = std::filesystem::path(TIDEPOOL_GOLDEN_DIR) / "ckpt";
    write_config(source, config_edits);
    std::filesystem::copy_file(source / "tokenizer.json", path() / "tokenizer.json");
    std::vector<std::vector<std::byte>> storage;
    std::vector<TensorToWrite> tensors;
    std::vector<SafetensorsFile> files;
    for (const auto& item : std::filesystem::directory_iterator(source)) {
      if (item.path().extension() == ".safetensors") files.emplace_back(item.path());
    }
    for (const SafetensorsFile& file : files) {
      for (const SafetensorsFile::Entry& entry : file.entries()) {
        const TensorView view = file.tensor(entry);
        std::vector<std::byte> data(view.data, view.data + view.bytes);
        if (tensor_edit && !tensor_edit(entry.name, data)) continue;
        tensors.push_back({entry.name, entry.dtype, entry.shape, {}});
        storage.push_back(std::move(data));
      }
    }
    for (size_t i = 0; i < tensors.size(); ++i)
      tensors[i].data = storage[i];
    write_safetensors(path() / "model.safetensors", tensors);
  }

  [[nodiscard]] const std::filesystem::path& path() const { return folder_.path(); }

 private:
  void write_config(const std::filesystem::path& source, const ConfigEdits& edits) const {
    std::ifstream in(source / "config.json");
    std::string text((std::istreambuf_iterator<char>(in)), {});
    for (const auto& [find, put] : edits) {
      const size_t at = text.find(find);
      TIDEPOOL_CHECK(at != std::string::npos && text.find(find, at + 1) == std::string::npos, find);
      text.replace(at, find.size(), put);
    }
    std::ofstream(path() / "config.json") << text;
  }

  TempFolder folder_;
};

}  // namespace tidepool::golden
