#include "formats/model_index.h"

#include <fmt/format.h>

#include <algorithm>

namespace tidepool {

std::string shard_name(size_t shard, size_t shards) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard, shards);
}

std::string make_model_index(std::vector<std::pair<std::string, size_t>> places, size_t shards, uint64_t total_bytes) {
  std::sort(places.begin(), places.end());
  // Nothing in the names needs an escape.
  std::string index =
      fmt::format("{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{", total_bytes);
  for (size_t i = 0; i < places.size(); ++i) {
    index +=
        fmt::format("{}\n    \"{}\": \"{}\"", i == 0 ? "" : ",", places[i].first, shard_name(places[i].second, shards));
  }
  return index + "\n  }\n}\n";
}

}  // namespace tidepool
