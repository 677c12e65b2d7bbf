#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "image/decode.h"
#include "image/plan.h"
#include "kv/block_key.h"
#include "session/prompt_ids.h"
#include "text/chat_request.h"

namespace tidepool {

class ImageFetcher;
class LoadedModel;

/// Memory for the pictures of all requests whose prompts are not read yet, bounded. Thread-safe.
class PictureMemory {
 public:
  explicit PictureMemory(size_t bytes_max) : bytes_max_(bytes_max) {}
  PictureMemory(const PictureMemory&) = delete;
  PictureMemory& operator=(const PictureMemory&) = delete;
  ~PictureMemory() = default;

  /// Taken as long as what is returned lives; null when there is not so much left. `memory` lives on as long.
  [[nodiscard]] static std::shared_ptr<const void> take(const std::shared_ptr<PictureMemory>& memory, size_t bytes);
  [[nodiscard]] size_t bytes_max() const { return bytes_max_; }
  [[nodiscard]] size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  const size_t bytes_max_;
  std::atomic<size_t> bytes_ = 0;  ///< relaxed: a counter that orders nothing else
};

/// The pictures of others take all there is for pictures; it passes.
class PicturesBusy : public Error {
 public:
  using Error::Error;
};

/// A picture of a request, ready for the vision tower.
struct RequestImage {
  Digest digest{};  ///< of the decoded pixels and of the way they were prepared: what caches know it by
  PreparedImage prepared;
  uint64_t pixels = 0;  ///< of the file
};
using RequestImagePtr = std::shared_ptr<const RequestImage>;

/// The pictures of a prompt, in its order: where each lies, and what it shows.
struct PromptImages {
  std::vector<ImageSpan> spans;
  std::vector<RequestImagePtr> pictures;  ///< one for each span
};

struct RequestImageLimits {
  ImageLimits file;
  size_t count_max = 600;  ///< of a request, as the hosted service has it
  /// Of all files of a request: a small request of well compressed files must not keep a processor busy for minutes.
  uint64_t pixels_max = uint64_t{2} << 30;
  std::shared_ptr<PictureMemory> memory{};        ///< what they take it from; may be null
  std::shared_ptr<const ImageFetcher> fetcher{};  ///< follows links; null: they are refused
};

/// Digest of a picture. (docs/images.md, "Digest")
[[nodiscard]] Digest image_digest(const RgbImage& image);

/// Decodes and prepares one picture file. `name` begins errors. Throws Error as decode_image and prepare_image.
[[nodiscard]] RequestImagePtr load_image(const LoadedModel& model, std::span<const std::byte> file,
                                         const std::string& name, const ImageLimits& limits = {});

/// Decodes the pictures of a request, in the order of its messages, and leaves in place of each its number: their bytes
/// may be most of the request, and it is copied on its way. Throws Error(kInvalidArgument) beginning with the field
/// ("messages[2].content[1]: ..."): for a model that cannot see, a picture that cannot be read or is above a limit, and
/// when all together take more positions than any context has, or more memory than all requests may. The same picture
/// several times takes memory once. Throws PicturesBusy (kResourceExhausted) while others have the memory.
[[nodiscard]] std::vector<RequestImagePtr> take_images(const LoadedModel& model, ChatRequest& request,
                                                       const RequestImageLimits& limits = {});

/// The pictures that belong to a rendered prompt's placeholders; `taken` is what take_images() gave for its request.
[[nodiscard]] std::vector<RequestImagePtr> images_of_prompt(const ChatPrompt& prompt,
                                                            std::span<const RequestImagePtr> taken);

/// Puts ids together, each image placeholder as the span of its picture: start, rows of cells with their ends, end,
/// all with the placeholder's id. (docs/model.md 4.3)
class ImagePromptBuilder {
 public:
  /// `pictures` in the order in which their placeholders will come.
  explicit ImagePromptBuilder(std::vector<RequestImagePtr> pictures) : pictures_(std::move(pictures)) {}

  void add(const PromptIds& piece);
  void add(std::span<const int32_t> ids) { ids_.insert(ids_.end(), ids.begin(), ids.end()); }
  [[nodiscard]] std::span<const int32_t> ids() const { return ids_; }

  [[nodiscard]] std::vector<int32_t> take_ids() { return std::move(ids_); }
  /// CHECKs that every picture found its place.
  [[nodiscard]] PromptImages take_images();

 private:
  std::vector<RequestImagePtr> pictures_;
  std::vector<int32_t> ids_;
  std::vector<ImageSpan> spans_;
};

/// The prompt as the model reads it: ids, and which of them are image positions.
[[nodiscard]] std::vector<InputToken> input_tokens(std::span<const int32_t> ids, std::span<const ImageSpan> images);

}  // namespace tidepool
