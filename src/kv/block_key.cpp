#include "kv/block_key.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace tidepool {
namespace {

/// Part of every root key: raise it when the bytes of a block or of a snapshot change their meaning.
constexpr int64_t kCacheFormat = 1;

/// The content of positions [begin, end): ids, image flags, and the images that touch them with their place.
void add_content(FieldHasher& hasher, const CacheText& text, int64_t begin, int64_t end) {
  const auto tokens = text.tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  std::vector<int32_t> ids;
  std::vector<std::byte> flags;
  ids.reserve(tokens.size());
  flags.reserve(tokens.size());
  for (const InputToken& token : tokens) {
    ids.push_back(token.id);
    flags.push_back(token.is_image ? std::byte{1} : std::byte{0});
  }
  hasher.add(std::as_bytes(std::span(ids))).add(flags);
  for (const ImageSpan& image : touching_images(text.images, begin, end)) {
    hasher.add(image.begin - begin).add(image.end - begin).add(image.digest);
  }
}

}  // namespace

std::span<const ImageSpan> touching_images(std::span<const ImageSpan> images, int64_t begin, int64_t end) {
  const auto first = std::ranges::partition_point(images, [&](const ImageSpan& image) { return image.end <= begin; });
  const auto last = std::ranges::partition_point(images, [&](const ImageSpan& image) { return image.begin < end; });
  return first < last ? std::span<const ImageSpan>(first, last) : std::span<const ImageSpan>();
}

BlockKey root_key(const CacheDomain& domain) {
  return {FieldHasher("tidepool kv root").add(kCacheFormat).add(domain.model).add(domain.salt).finish()};
}

BlockKey block_key(const BlockKey& parent, const CacheText& text, int64_t index) {
  const int64_t begin = index * kBlockTokens;
  TIDEPOOL_CHECK(begin + kBlockTokens <= static_cast<int64_t>(text.tokens.size()), "only whole blocks have keys");
  FieldHasher hasher("tidepool kv block");
  hasher.add(parent.digest);
  add_content(hasher, text, begin, begin + kBlockTokens);
  return {hasher.finish()};
}

std::vector<BlockKey> block_chain(const CacheDomain& domain, const CacheText& text) {
  std::vector<BlockKey> chain;
  BlockKey parent = root_key(domain);
  const int64_t blocks = static_cast<int64_t>(text.tokens.size()) / kBlockTokens;
  chain.reserve(static_cast<size_t>(blocks));
  for (int64_t index = 0; index < blocks; ++index) {
    parent = block_key(parent, text, index);
    chain.push_back(parent);
  }
  return chain;
}

BlockKey snapshot_key(const BlockKey& parent, const CacheText& text, int64_t length) {
  const int64_t begin = length / kBlockTokens * kBlockTokens;
  TIDEPOOL_CHECK(length <= static_cast<int64_t>(text.tokens.size()), "a snapshot is of known tokens");
  FieldHasher hasher("tidepool kv snapshot");
  hasher.add(parent.digest).add(length);
  add_content(hasher, text, begin, length);
  return {hasher.finish()};
}

}  // namespace tidepool

size_t std::hash<tidepool::BlockKey>::operator()(const tidepool::BlockKey& key) const noexcept {
  size_t value = 0;
  std::memcpy(&value, key.digest.data(), sizeof(value));
  return value;
}
