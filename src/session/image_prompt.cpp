#include "session/image_prompt.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "model/vision.h"
#include "session/image_source.h"
#include "session/loaded_model.h"

namespace tidepool {
namespace {

/// Under which take_images() leaves a picture's number.
constexpr std::string_view kNumberKey = "number";

/// Collects the pictures of a request.
class ImageTaker {
 public:
  ImageTaker(const LoadedModel& model, const RequestImageLimits& limits) : model_(model), limits_(limits) {}

  void take_all(std::vector<ContentBlock>& content, const std::string& path) {
    for (size_t i = 0; i < content.size(); ++i) {
      ContentBlock& block = content[i];
      const std::string place = fmt::format("{}.content[{}]", path, i);
      if (block.kind == ContentBlock::Kind::kImage) take(block.image, place);
      if (block.kind == ContentBlock::Kind::kToolResult) take_all(block.content, place);
    }
  }

  std::vector<RequestImagePtr> finish() { return std::move(taken_); }

 private:
  void take(Json& record, const std::string& path) {
    read(record, path);
    check_totals(path);
    share(path);
    record = Json::make_object();
    record.set(kNumberKey, Json::make_integer(static_cast<int64_t>(taken_.size() - 1)));
  }

  void read(const Json& record, const std::string& path) {
    try {
      if (taken_.size() == limits_.count_max) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("{}: a request may have {} images; leave out older ones", path, limits_.count_max));
      }
      const std::string bytes = image_record_bytes(record, path, limits_.file.bytes_max, limits_.fetcher.get());
      taken_.push_back(load_image(model_, std::as_bytes(std::span(bytes)), path, limits_.file));
    } catch (const PicturesBusy&) {
      throw;
    } catch (const Error& error) {
      // Whatever is wrong with a picture, the client can send another.
      throw Error(ErrorCode::kInvalidArgument, error.what());
    }
  }

  void check_totals(const std::string& path) {
    pixels_ += taken_.back()->pixels;
    if (pixels_ > limits_.pixels_max) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("{}: the images up to this one have {} pixels, and a request may have {}; scale them down, "
                      "the model sees less than two million of each",
                      path, pixels_, limits_.pixels_max));
    }
    tokens_ += taken_.back()->prepared.plan.tokens();
    if (tokens_ > model_.config().max_position_embeddings) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: the images up to this one take {} tokens, and the context has {}; send fewer or "
                              "smaller ones",
                              path, tokens_, model_.config().max_position_embeddings));
    }
  }

  /// Keeps the picture taken last once only, and counts its memory.
  void share(const std::string& path) {
    const auto [same, is_new] = by_digest_.try_emplace(taken_.back()->digest, taken_.back());
    if (!is_new) {
      taken_.back() = same->second;
      return;
    }
    if (!limits_.memory) return;
    const size_t bytes = taken_.back()->prepared.canvas.pixels.size();
    bytes_ += bytes;
    if (bytes_ > limits_.memory->bytes_max()) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("{}: the images up to this one take {} MiB of memory, and all of the server's may take {}; "
                      "send fewer or smaller ones",
                      path, bytes_ >> 20, limits_.memory->bytes_max() >> 20));
    }
    std::shared_ptr<const void> memory = PictureMemory::take(limits_.memory, bytes);
    if (!memory) {
      throw PicturesBusy(
          ErrorCode::kResourceExhausted,
          fmt::format("{}: images of other requests take all the memory for images; ask again later", path));
    }
    // One that gives its memory back when nobody has it any more.
    const auto counted = std::make_shared<Counted>(Counted{std::move(memory), taken_.back()});
    taken_.back() = same->second = RequestImagePtr(counted, counted->image.get());
  }

  struct Counted {
    std::shared_ptr<const void> memory;
    RequestImagePtr image;
  };

  const LoadedModel& model_;
  const RequestImageLimits& limits_;
  std::vector<RequestImagePtr> taken_;
  std::map<Digest, RequestImagePtr> by_digest_;
  size_t bytes_ = 0;
  int64_t tokens_ = 0;
  uint64_t pixels_ = 0;
};

}  // namespace

std::shared_ptr<const void> PictureMemory::take(const std::shared_ptr<PictureMemory>& memory, size_t bytes) {
  size_t before = memory->bytes();
  do {
    if (bytes > memory->bytes_max_ - before) return nullptr;
  } while (!memory->bytes_.compare_exchange_weak(before, before + bytes, std::memory_order_relaxed));
  return {memory.get(),
          [memory, bytes](const PictureMemory*) { memory->bytes_.fetch_sub(bytes, std::memory_order_relaxed); }};
}

Digest image_digest(const RgbImage& image) {
  FieldHasher hasher("tidepool image");
  hasher.add(int64_t{kImagePreparationVersion});
  hasher.add(static_cast<int64_t>(image.width)).add(static_cast<int64_t>(image.height));
  hasher.add(std::as_bytes(std::span(image.pixels)));
  return hasher.finish();
}

RequestImagePtr load_image(const LoadedModel& model, std::span<const std::byte> file, const std::string& name,
                           const ImageLimits& limits) {
  const ModelConfig& config = model.config();
  if (!config.vision) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: this model cannot see images, as {} has no vision tower; leave the image out, or load "
                            "a checkpoint that has one",
                            name, model.checkpoint().folder().string()));
  }
  const RgbImage image = decode_image(file, name, limits);
  auto loaded = std::make_shared<RequestImage>();
  loaded->digest = image_digest(image);
  loaded->pixels = uint64_t{image.width} * image.height;
  loaded->prepared = prepare_image(image_plan_config(*config.vision), image, name);
  return loaded;
}

std::vector<RequestImagePtr> take_images(const LoadedModel& model, ChatRequest& request,
                                         const RequestImageLimits& limits) {
  ImageTaker taker(model, limits);
  for (size_t i = 0; i < request.messages.size(); ++i)
    taker.take_all(request.messages[i].content, fmt::format("messages[{}]", i));
  return taker.finish();
}

std::vector<RequestImagePtr> images_of_prompt(const ChatPrompt& prompt, std::span<const RequestImagePtr> taken) {
  std::vector<RequestImagePtr> pictures;
  for (const Json& record : prompt.images) {
    const Json* number = record.find(kNumberKey);
    TIDEPOOL_CHECK(number != nullptr && number->try_int64(), "pictures are taken before a prompt is rendered");
    pictures.push_back(taken[static_cast<size_t>(*number->try_int64())]);
  }
  return pictures;
}

void ImagePromptBuilder::add(const PromptIds& piece) {
  size_t done = 0;
  for (const size_t place : piece.image_places) {
    TIDEPOOL_CHECK(spans_.size() < pictures_.size(), "each placeholder has its picture");
    add(std::span(piece.ids).subspan(done, place - done));
    const RequestImage& picture = *pictures_[spans_.size()];
    const auto begin = static_cast<int64_t>(ids_.size());
    ids_.insert(ids_.end(), static_cast<size_t>(picture.prepared.plan.tokens()), piece.ids[place]);
    spans_.push_back({begin, static_cast<int64_t>(ids_.size()), picture.digest});
    done = place + 1;
  }
  add(std::span(piece.ids).subspan(done));
}

PromptImages ImagePromptBuilder::take_images() {
  TIDEPOOL_CHECK(spans_.size() == pictures_.size(), "each picture has its placeholder");
  return {std::move(spans_), std::move(pictures_)};
}

std::vector<InputToken> input_tokens(std::span<const int32_t> ids, std::span<const ImageSpan> images) {
  std::vector<InputToken> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids)
    tokens.push_back({id, false});
  for (const ImageSpan& image : images) {
    for (int64_t position = image.begin; position < image.end; ++position)
      tokens[static_cast<size_t>(position)].is_image = true;
  }
  return tokens;
}

}  // namespace tidepool
