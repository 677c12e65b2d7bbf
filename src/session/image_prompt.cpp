#include "session/image_prompt.h"

#include <fmt/format.h>

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
    try {
      if (taken_.size() == limits_.count_max) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("{}: a request may have {} images; leave out older ones", path, limits_.count_max));
      }
      const std::string bytes = image_record_bytes(record, path, limits_.file.bytes_max);
      taken_.push_back(load_image(model_, std::as_bytes(std::span(bytes)), path, limits_.file));
    } catch (const Error& error) {
      // Whatever is wrong with a picture, the client can send another.
      throw Error(ErrorCode::kInvalidArgument, error.what());
    }
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
    record = Json::make_object();
    record.set(kNumberKey, Json::make_integer(static_cast<int64_t>(taken_.size() - 1)));
  }

  const LoadedModel& model_;
  const RequestImageLimits& limits_;
  std::vector<RequestImagePtr> taken_;
  int64_t tokens_ = 0;
  uint64_t pixels_ = 0;
};

}  // namespace

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
