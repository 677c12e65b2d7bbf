#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kv/sequence_state.h"
#include "kv/sha256.h"

namespace tidepool {

/// Names a block of global KV by everything it depends on; equal keys mean equal bytes. (docs/kv_cache.md, "Keys")
struct BlockKey {
  Digest digest{};
  friend auto operator<=>(const BlockKey&, const BlockKey&) = default;  // NOLINT(*-nullptr,*-conversion)
};

/// What the KV of a sequence depends on besides its tokens.
struct CacheDomain {
  Digest model{};    ///< fingerprint of config, tensor index and samples of the weights
  std::string salt;  ///< isolates tenants; contexts under different salts never share anything
};

/// The image that a run of image positions shows. All such positions carry one id, so the picture itself must tell
/// them apart.
struct ImageSpan {
  int64_t begin = 0;  ///< first position
  int64_t end = 0;    ///< behind the last one
  Digest digest{};    ///< of the decoded pixels and of the way they were prepared
  friend bool operator==(const ImageSpan&, const ImageSpan&) = default;
};

/// A prompt or the content of a sequence, as keys see it. Spans are in order and do not overlap.
struct CacheText {
  std::span<const InputToken> tokens;
  std::span<const ImageSpan> images;
};

/// Parent of every first block of a domain: SHA-256(format domain, cache format version, fingerprint, salt).
[[nodiscard]] BlockKey root_key(const CacheDomain& domain);

/// Key of block `index` of `text` behind `parent`: SHA-256(parent, its kBlockTokens ids and image flags, digest and
/// place of each image whose span touches it).
[[nodiscard]] BlockKey block_key(const BlockKey& parent, const CacheText& text, int64_t index);

/// Keys of all complete blocks of `text`, first to last.
[[nodiscard]] std::vector<BlockKey> block_chain(const CacheDomain& domain, const CacheText& text);

/// Names the whole state of a sequence that holds the first `length` tokens of `text`; `parent` is the key of its last
/// complete block, or the root.
[[nodiscard]] BlockKey snapshot_key(const BlockKey& parent, const CacheText& text, int64_t length);

/// The images whose spans touch positions [begin, end).
[[nodiscard]] std::span<const ImageSpan> touching_images(std::span<const ImageSpan> images, int64_t begin, int64_t end);

}  // namespace tidepool

template <>
struct std::hash<tidepool::BlockKey> {
  /// The digest is uniform: its first bytes are a hash already.
  size_t operator()(const tidepool::BlockKey& key) const noexcept;
};
