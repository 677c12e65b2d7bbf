#include "kv/snapshot.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "base/check.h"

namespace tidepool {
namespace {

constexpr std::array<char, 8> kMagic = {'T', 'P', 'S', 'N', 'A', 'P', '\0', '\0'};
constexpr uint32_t kVersion = 1;
constexpr uint32_t kIsBounded = 1;

/// The first bytes. Everything that follows has a size that they determine.
struct Header {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t flags;
  Digest layout;
  int64_t length;
  int64_t longest;
  int64_t global_end;
  int64_t encoder_begin;
  int64_t decoder_begin;
  int64_t decoder_end;
  int64_t draft_begin;
  int64_t draft_end;
  uint32_t image_count;
  uint32_t draft_stages;
};
static_assert(sizeof(Header) == 120 && std::is_trivially_copyable_v<Header>);

struct TokenRecord {
  int32_t id;
  uint32_t is_image;
};
struct ImageRecord {
  int64_t begin;
  int64_t end;
  Digest digest;
};

/// Everything in the layout that shapes a snapshot, the windows of drafts apart: they may differ and are then left out.
Digest layout_digest(const KvLayout& layout) {
  FieldHasher hasher("tidepool kv layout");
  for (const KvSource& source : layout.sources) {
    hasher.add(source.ratio)
        .add(static_cast<int64_t>(source.entry_format))
        .add(static_cast<int64_t>(source.key_format))
        .add(static_cast<int64_t>(source.entry_width))
        .add(static_cast<int64_t>(source.key_width));
  }
  return hasher.add(static_cast<int64_t>(layout.window_layers))
      .add(static_cast<int64_t>(layout.first_decoder_layer))
      .add(layout.window)
      .add(static_cast<int64_t>(layout.window_format))
      .add(static_cast<int64_t>(layout.window_width))
      .add(layout.rollback_max)
      .finish();
}

/// Positions of rows, [begin, end).
struct RowRange {
  int64_t begin;
  int64_t end;
  [[nodiscard]] size_t count() const { return begin < end ? static_cast<size_t>(end - begin) : 0; }
};

/// The rows of a ring that are not overwritten yet.
RowRange kept_rows(const SequenceMarks& marks, int64_t ring_rows, int64_t begin, int64_t end) {
  return {std::max(begin, marks.longest - ring_rows), end};
}

RowRange window_rows(const KvLayout& layout, const SequenceMarks& marks, int64_t length, size_t ring) {
  if (ring >= layout.window_layers) return kept_rows(marks, layout.ring_rows(), marks.draft_begin, marks.draft_end);
  if (ring >= layout.first_decoder_layer)
    return kept_rows(marks, layout.ring_rows(), marks.decoder_begin, marks.decoder_end);
  return kept_rows(marks, layout.ring_rows(), marks.encoder_begin, length);
}

const std::byte* entries_at(const SequenceState& state, size_t source, int64_t index) {
  return state.entry(source, index);
}
std::byte* entries_at(SequenceState& state, size_t source, int64_t index) {
  return state.entry_for_write(source, index).data();
}
const std::byte* keys_at(const SequenceState& state, size_t source, int64_t index) {
  return state.key(source, index);
}
std::byte* keys_at(SequenceState& state, size_t source, int64_t index) {
  return state.key_for_write(source, index).data();
}

/// Calls visit(pointer, bytes) for one part of a state after the other: begun block, compressor rows, windows of the
/// first `rings` rings. A const state is read, another one written.
template <typename State, typename Visit>
void visit_rows(State& state, size_t rings, Visit visit) {
  const KvLayout& layout = state.layout();
  const SequenceMarks& marks = state.marks();
  const int64_t length = state.length();
  const int64_t begun = length / kBlockTokens * kBlockTokens;
  for (size_t s = 0; s < layout.sources.size(); ++s) {
    const KvSource& source = layout.sources[s];
    const auto entries = static_cast<size_t>(length / source.ratio - begun / source.ratio);
    if (entries == 0) continue;
    visit(entries_at(state, s, begun / source.ratio), entries * source.entry_bytes);
    visit(keys_at(state, s, begun / source.ratio), entries * source.key_bytes);
  }
  const RowRange compressor = kept_rows(marks, state.compressor_ring_rows(), marks.encoder_begin, length);
  for (size_t s = 0; s < layout.sources.size(); ++s) {
    if (layout.sources[s].ratio == 1) continue;
    for (int64_t position = compressor.begin; position < compressor.end; ++position) {
      const auto row = state.compressor_row(s, position);
      visit(row.data(), row.size_bytes());
    }
  }
  for (size_t ring = 0; ring < rings; ++ring) {
    const RowRange rows = window_rows(layout, marks, length, ring);
    for (int64_t position = rows.begin; position < rows.end; ++position)
      visit(state.window(ring).row(position).data(), layout.window_row_bytes);
  }
}

/// Bytes of everything between the header and the checksum.
size_t body_bytes(const KvLayout& layout, const Header& header, const SequenceMarks& marks) {
  const int64_t begun = header.length / kBlockTokens * kBlockTokens;
  size_t bytes = static_cast<size_t>(header.length - begun) * sizeof(TokenRecord) +
                 static_cast<size_t>(header.image_count) * sizeof(ImageRecord);
  for (const KvSource& source : layout.sources) {
    const auto entries = static_cast<size_t>(header.length / source.ratio - begun / source.ratio);
    bytes += entries * (source.entry_bytes + source.key_bytes);
    if (source.ratio == 1) continue;
    const RowRange rows = kept_rows(marks, layout.rollback_max + 2, marks.encoder_begin, header.length);
    bytes += rows.count() * 2 * source.entry_width * sizeof(float);
  }
  size_t rows = 0;
  for (size_t ring = 0; ring < layout.window_layers + header.draft_stages; ++ring)
    rows += window_rows(layout, marks, header.length, ring).count();
  return bytes + rows * layout.window_row_bytes;
}

SequenceMarks marks_of(const Header& header) {
  return {header.longest,       header.global_end,    (header.flags & kIsBounded) != 0,
          header.encoder_begin, header.decoder_begin, header.decoder_end,
          header.draft_begin,   header.draft_end};
}

/// Longer contexts than any model of this family reads.
constexpr int64_t kLengthMax = int64_t{1} << 40;
/// More draft stages or images than make sense; keeps sizes far from overflow.
constexpr uint32_t kDraftStagesMax = 64;

bool is_consistent(const KvLayout& layout, const Header& header) {
  const auto within = [](int64_t begin, int64_t end, int64_t limit) {
    return begin >= 0 && begin <= end && end <= limit;
  };
  return header.length > 0 && header.length <= kLengthMax && header.longest >= header.length &&
         header.longest <= header.length + layout.rollback_max && within(0, header.global_end, header.length) &&
         header.global_end % kBlockTokens == 0 && within(header.encoder_begin, header.length, header.length) &&
         within(header.decoder_begin, header.decoder_end, header.length) &&
         within(header.draft_begin, header.draft_end, header.length) && (header.flags & ~kIsBounded) == 0 &&
         header.image_count <= kBlockTokens && header.draft_stages <= kDraftStagesMax;
}

/// Takes plain values off the front of bytes; the caller has checked that there are enough.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  T take() {
    T value;
    take(&value, sizeof(T));
    return value;
  }
  void take(void* out, size_t bytes) {
    std::memcpy(out, bytes_.data(), bytes);
    bytes_ = bytes_.subspan(bytes);
  }

 private:
  std::span<const std::byte> bytes_;
};

template <typename T>
void append_value(std::vector<std::byte>& out, const T& value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof(T));
}

/// The header of bytes that are whole and undamaged.
std::optional<Header> check_snapshot(const KvLayout& layout, std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(Header) + sizeof(Digest)) return std::nullopt;
  const auto header = Reader(bytes).take<Header>();
  if (header.magic != kMagic || header.version != kVersion || header.layout != layout_digest(layout) ||
      !is_consistent(layout, header)) {
    return std::nullopt;
  }
  if (bytes.size() != sizeof(Header) + body_bytes(layout, header, marks_of(header)) + sizeof(Digest))
    return std::nullopt;
  const std::span<const std::byte> content = bytes.first(bytes.size() - sizeof(Digest));
  if (sha256(content) != Reader(bytes.last(sizeof(Digest))).take<Digest>()) return std::nullopt;
  return header;
}

/// The tail's tokens and images, behind the header.
std::optional<SnapshotInfo> take_info(const Header& header, Reader& reader) {
  SnapshotInfo info;
  info.length = header.length;
  info.marks = marks_of(header);
  info.tail.reserve(kBlockTokens);
  for (int64_t position = info.tail_begin(); position < header.length; ++position) {
    const auto token = reader.take<TokenRecord>();
    if (token.is_image > 1) return std::nullopt;
    info.tail.push_back({token.id, token.is_image == 1});
  }
  int64_t last_end = 0;
  info.images.reserve(header.image_count);
  for (uint32_t i = 0; i < header.image_count; ++i) {
    const auto image = reader.take<ImageRecord>();
    if (image.begin < last_end || image.end <= image.begin || image.end > kLengthMax) return std::nullopt;
    last_end = image.end;
    info.images.push_back({image.begin, image.end, image.digest});
  }
  return info;
}

}  // namespace

std::vector<std::byte> write_snapshot(const SequenceState& state, std::span<const ImageSpan> images) {
  TIDEPOOL_CHECK(state.length() > 0 && state.length() >= state.global_end(), "a replay is over before a snapshot");
  const KvLayout& layout = state.layout();
  const SequenceMarks& marks = state.marks();
  const int64_t begun = state.length() / kBlockTokens * kBlockTokens;
  const std::span<const ImageSpan> touching = touching_images(images, begun, state.length());
  const Header header{kMagic,
                      kVersion,
                      marks.is_bounded ? kIsBounded : 0,
                      layout_digest(layout),
                      state.length(),
                      marks.longest,
                      marks.global_end,
                      marks.encoder_begin,
                      marks.decoder_begin,
                      marks.decoder_end,
                      marks.draft_begin,
                      marks.draft_end,
                      static_cast<uint32_t>(touching.size()),
                      static_cast<uint32_t>(layout.draft_stages)};
  std::vector<std::byte> out;
  out.reserve(sizeof(Header) + body_bytes(layout, header, marks) + sizeof(Digest));
  append_value(out, header);
  for (const InputToken& token : state.tokens().subspan(static_cast<size_t>(begun)))
    append_value(out, TokenRecord{token.id, token.is_image ? 1U : 0U});
  for (const ImageSpan& image : touching)
    append_value(out, ImageRecord{image.begin, image.end, image.digest});
  visit_rows(state, layout.window_layers + layout.draft_stages, [&](const void* row, size_t bytes) {
    const auto* begin = static_cast<const std::byte*>(row);
    out.insert(out.end(), begin, begin + bytes);
  });
  append_value(out, sha256(out));
  return out;
}

SnapshotInfo snapshot_info(const SequenceState& state, std::span<const ImageSpan> images) {
  SnapshotInfo info;
  info.length = state.length();
  info.marks = state.marks();
  const auto tail = state.tokens().subspan(static_cast<size_t>(info.tail_begin()));
  info.tail.assign(tail.begin(), tail.end());
  const auto touching = touching_images(images, info.tail_begin(), info.length);
  info.images.assign(touching.begin(), touching.end());
  return info;
}

std::optional<SnapshotInfo> read_snapshot_info(const KvLayout& layout, std::span<const std::byte> bytes) {
  const std::optional<Header> header = check_snapshot(layout, bytes);
  if (!header) return std::nullopt;
  Reader reader(bytes.subspan(sizeof(Header)));
  return take_info(*header, reader);
}

std::optional<SequenceState> restore_snapshot(std::shared_ptr<const KvLayout> layout, std::span<const std::byte> bytes,
                                              std::span<const InputToken> tokens,
                                              std::span<const std::shared_ptr<const KvBlock>> blocks) {
  const std::optional<Header> header = check_snapshot(*layout, bytes);
  if (!header) return std::nullopt;
  Reader reader(bytes.subspan(sizeof(Header)));
  const std::optional<SnapshotInfo> info = take_info(*header, reader);
  if (!info) return std::nullopt;
  TIDEPOOL_CHECK(static_cast<int64_t>(tokens.size()) == info->tail_begin(), "tokens of the complete blocks");
  std::vector<InputToken> all(tokens.begin(), tokens.end());
  all.insert(all.end(), info->tail.begin(), info->tail.end());
  SequenceMarks marks = info->marks;
  const bool has_drafts = header->draft_stages == layout->draft_stages;
  if (!has_drafts) marks.draft_begin = marks.draft_end = info->length;
  const size_t rings = layout->window_layers + (has_drafts ? layout->draft_stages : 0);
  SequenceState state = SequenceState::restore(std::move(layout), all, blocks, marks);
  visit_rows(state, rings, [&](void* row, size_t row_bytes) { reader.take(row, row_bytes); });
  return state;
}

int64_t common_tokens(const CacheText& text, int64_t begin, std::span<const InputToken> tail,
                      std::span<const ImageSpan> images) {
  const auto tokens = text.tokens.subspan(static_cast<size_t>(begin));
  const auto most = static_cast<int64_t>(std::min(tokens.size(), tail.size()));
  const std::span<const ImageSpan> own = touching_images(text.images, begin, begin + most);
  int64_t common = 0;
  while (common < most && tokens[static_cast<size_t>(common)] == tail[static_cast<size_t>(common)])
    ++common;
  // Positions of different pictures are alike but for the picture.
  const std::span<const ImageSpan> other = touching_images(images, begin, begin + most);
  for (size_t i = 0; i < std::max(own.size(), other.size()); ++i) {
    if (i < own.size() && i < other.size() && own[i] == other[i]) continue;
    if (i < own.size()) common = std::min(common, std::max<int64_t>(own[i].begin - begin, 0));
    if (i < other.size()) common = std::min(common, std::max<int64_t>(other[i].begin - begin, 0));
    break;
  }
  return common;
}

}  // namespace tidepool
