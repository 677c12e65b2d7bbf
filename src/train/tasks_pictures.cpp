// Drawings of one or two shapes and questions about them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "image/encode_png.h"
#include "session/image_source.h"
#include "train/random_stream.h"
#include "train/tasks.h"

namespace tidepool {
namespace {

/// Two cells of 3 x 3 patches of 14 pixels a side: a span of eight positions.
constexpr size_t kSide = 84;
/// Of all scenes, those whose description has such a hash are held out.
constexpr uint64_t kScenesHeldoutOneIn = 8;

struct Colour {
  std::string_view name;
  std::array<int64_t, 3> rgb;
};
constexpr std::array<Colour, 8> kColours = {{
    {"red", {220, 40, 40}},
    {"green", {40, 160, 60}},
    {"blue", {50, 80, 220}},
    {"yellow", {235, 215, 50}},
    {"purple", {150, 50, 170}},
    {"black", {20, 20, 20}},
    {"grey", {130, 130, 130}},
    {"white", {240, 240, 240}},
}};
/// By how much a colour differs from picture to picture.
constexpr int64_t kColourJitter = 15;

enum class Kind : uint8_t { kCircle, kSquare, kTriangle, kCross, kRing, kBar };
constexpr std::array<std::string_view, 6> kKinds = {"circle", "square", "triangle", "cross", "ring", "bar"};

/// Whether a shape has the point (x, y); all of it lies within [-1, 1], y pointing down.
bool has_point(Kind kind, double x, double y) {
  constexpr double kBarWidth = 0.34;
  switch (kind) {
    case Kind::kCircle: return x * x + y * y <= 1;
    case Kind::kSquare: return std::max(std::abs(x), std::abs(y)) <= 0.85;
    case Kind::kTriangle: return y <= 0.8 && std::abs(x) <= (y + 1) / 1.8;
    case Kind::kCross:
      return std::min(std::abs(x), std::abs(y)) <= kBarWidth && std::max(std::abs(x), std::abs(y)) <= 1;
    case Kind::kRing: return x * x + y * y <= 1 && x * x + y * y >= 0.3;
    case Kind::kBar: return std::abs(y) <= kBarWidth && std::abs(x) <= 1;
  }
  return false;
}

struct Shape {
  Kind kind = Kind::kCircle;
  size_t colour = 0;

  [[nodiscard]] std::string_view kind_name() const { return kKinds[static_cast<size_t>(kind)]; }
  [[nodiscard]] std::string_view colour_name() const { return kColours[colour].name; }
};

/// What a picture shows. All colours differ, and so do the kinds.
struct Scene {
  size_t ground = 0;
  std::vector<Shape> shapes;  ///< one or two, from left to right

  [[nodiscard]] std::string_view ground_name() const { return kColours[ground].name; }
};

std::string describe(const Scene& scene) {
  std::string text;
  for (const Shape& shape : scene.shapes)
    text += fmt::format("{} {} {}", text.empty() ? "A" : " and a", shape.colour_name(), shape.kind_name());
  return text + fmt::format(" on a {} ground.", scene.ground_name());
}

/// The first `count` of a random order of [0, all).
std::vector<size_t> draw_different(size_t count, size_t all, RandomStream& random) {
  std::vector<size_t> order(all);
  for (size_t i = 0; i < all; ++i)
    order[i] = i;
  for (size_t i = 0; i < count; ++i)
    std::swap(order[i], order[i + random.below(all - i)]);
  order.resize(count);
  return order;
}

Scene draw_any_scene(RandomStream& random) {
  const size_t count = random.one_in(2) ? 1 : 2;
  const std::vector<size_t> kinds = draw_different(count, kKinds.size(), random);
  const std::vector<size_t> colours = draw_different(count + 1, kColours.size(), random);
  Scene scene;
  scene.ground = colours[count];
  scene.shapes.reserve(count);
  for (size_t i = 0; i < count; ++i)
    scene.shapes.push_back({static_cast<Kind>(kinds[i]), colours[i]});
  return scene;
}

Scene draw_scene(Split split, RandomStream& random) {
  while (true) {
    Scene scene = draw_any_scene(random);
    const bool is_heldout = stable_hash(describe(scene)) % kScenesHeldoutOneIn == 0;
    if (is_heldout == (split == Split::kHeldout)) return scene;
  }
}

using Pixel = std::array<uint8_t, RgbImage::kChannels>;

Pixel draw_colour(size_t colour, RandomStream& random) {
  Pixel pixel{};
  for (size_t channel = 0; channel < pixel.size(); ++channel) {
    const int64_t value = kColours[colour].rgb[channel] + random.between(-kColourJitter, kColourJitter);
    pixel[channel] = static_cast<uint8_t>(value);
  }
  return pixel;
}

/// Where a shape lies, in pixels.
struct Place {
  int64_t x = 0;  ///< of its middle
  int64_t y = 0;
  int64_t radius = 0;
};

/// A shape of `count` from left to right, each in a part of the picture of its own.
Place draw_place(size_t index, size_t count, RandomStream& random) {
  constexpr int64_t kLeast = 12;
  const int64_t part = static_cast<int64_t>(kSide / count);
  const int64_t radius = random.between(kLeast, part / 2 - 4);
  const int64_t begin = part * static_cast<int64_t>(index);
  return {.x = random.between(begin + radius + 1, begin + part - radius - 2),
          .y = random.between(radius + 1, static_cast<int64_t>(kSide) - radius - 2),
          .radius = radius};
}

void draw_shape(const Shape& shape, const Place& place, const Pixel& pixel, RgbImage& image) {
  for (int64_t y = place.y - place.radius; y <= place.y + place.radius; ++y) {
    for (int64_t x = place.x - place.radius; x <= place.x + place.radius; ++x) {
      const auto radius = static_cast<double>(place.radius);
      if (!has_point(shape.kind, static_cast<double>(x - place.x) / radius, static_cast<double>(y - place.y) / radius))
        continue;
      const auto column = static_cast<size_t>(x);
      std::ranges::copy(pixel, image.row(static_cast<size_t>(y)).subspan(column * pixel.size()).begin());
    }
  }
}

RgbImage draw(const Scene& scene, RandomStream& random) {
  RgbImage image(kSide, kSide);
  const Pixel ground = draw_colour(scene.ground, random);
  for (size_t i = 0; i < image.pixels.size(); ++i)
    image.pixels[i] = ground[i % ground.size()];
  for (size_t i = 0; i < scene.shapes.size(); ++i) {
    const Place place = draw_place(i, scene.shapes.size(), random);
    draw_shape(scene.shapes[i], place, draw_colour(scene.shapes[i].colour, random), image);
  }
  return image;
}

struct Question {
  std::string_view group;
  std::string text;
  std::string answer;
};

template <size_t kCount, typename... Arguments>
std::string word(RandomStream& random, const std::array<std::string_view, kCount>& forms,
                 const Arguments&... arguments) {
  return fmt::format(fmt::runtime(random.pick(std::span(forms))), arguments...);
}

/// One question of each kind that the scene allows.
std::vector<Question> make_questions(const Scene& scene, RandomStream& random) {
  constexpr std::array<std::string_view, 4> kDescribe = {"What is in the picture?", "What do you see?",
                                                         "Describe the picture.", "What does the picture show?"};
  constexpr std::array<std::string_view, 3> kColour = {"Which colour is the {}?", "What colour does the {} have?",
                                                       "The {} has which colour?"};
  constexpr std::array<std::string_view, 2> kShape = {"Which shape is {}?", "What is {} in the picture?"};
  constexpr std::array<std::string_view, 3> kCount = {"How many shapes are there?", "How many shapes do you see?",
                                                      "Count the shapes."};
  constexpr std::array<std::string_view, 2> kGround = {"Which colour is the ground?",
                                                       "What colour does the ground have?"};
  constexpr std::array<std::string_view, 2> kSideOf = {"Which shape is on the {}?", "What is on the {}?"};
  const auto any_shape = [&]() -> const Shape& { return scene.shapes[random.below(scene.shapes.size())]; };
  const Shape& coloured = any_shape();
  const Shape& shaped = any_shape();
  std::vector<Question> questions = {
      {"describe", word(random, kDescribe), describe(scene)},
      {"colour", word(random, kColour, coloured.kind_name()), std::string(coloured.colour_name())},
      {"shape", word(random, kShape, shaped.colour_name()), std::string(shaped.kind_name())},
      {"count", word(random, kCount), scene.shapes.size() == 1 ? "one" : "two"},
      {"ground", word(random, kGround), std::string(scene.ground_name())},
  };
  if (scene.shapes.size() == 2) {
    const size_t side = random.below(2);
    questions.push_back(
        {"side", word(random, kSideOf, side == 0 ? "left" : "right"), std::string(scene.shapes[side].kind_name())});
  }
  return questions;
}

/// The first turn: the picture and a question, in either order.
ChatMessage show(const RgbImage& image, std::string question, RandomStream& random) {
  const std::string file = encode_png(image);
  ChatMessage message = text_message(ChatRole::kUser, std::move(question));
  message.content.insert(random.one_in(4) ? message.content.end() : message.content.begin(),
                         make_image_block(std::as_bytes(std::span(file))));
  return message;
}

class PicturesTask final : public Task {
 public:
  explicit PicturesTask(const TaskOptions& options) : has_one_question_(options.questions_per_context != 0) {}

  [[nodiscard]] Dialogue make(const TaskItem& item) const override {
    RandomStream random(item.seed, fmt::format("pictures/{}", split_name(item.split)), item.index);
    const Scene scene = draw_scene(item.split, random);
    const RgbImage image = draw(scene, random);
    const std::vector<Question> questions = make_questions(scene, random);
    Dialogue dialogue;
    dialogue.request.is_thinking = random.one_in(2);
    constexpr std::array<int, 4> kEfforts = {10, 50, 75, 100};
    dialogue.request.effort = random.pick(std::span(kEfforts));
    // In thinking mode earlier answers would not be learnt.
    const bool is_one = has_one_question_ || dialogue.request.is_thinking;
    const size_t count = is_one ? 1 : 1 + random.below(questions.size());
    std::vector<ChatMessage>& messages = dialogue.request.messages;
    for (const size_t q : draw_different(count, questions.size(), random)) {
      const Question& question = questions[q];
      if (!messages.empty()) messages.push_back(std::move(dialogue.answer));
      messages.push_back(messages.empty() ? show(image, question.text, random)
                                          : text_message(ChatRole::kUser, question.text));
      dialogue.answer = text_message(ChatRole::kAssistant, question.answer);
      dialogue.group = question.group;
    }
    if (dialogue.request.is_thinking) dialogue.answer.reasoning = describe(scene);
    return dialogue;
  }

 private:
  bool has_one_question_;
};

}  // namespace

std::unique_ptr<Task> make_pictures_task(const TaskOptions& options) {
  return std::make_unique<PicturesTask>(options);
}

}  // namespace tidepool
