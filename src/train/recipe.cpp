#include "train/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/file.h"
#include "text/json.h"
#include "train/name_list.h"
#include "train/tasks.h"
#include "train/tasks_words.h"

namespace tidepool {
namespace {

constexpr int64_t kFormat = 1;
constexpr uint64_t kRecipeBytesMax = uint64_t{1} << 20;
constexpr size_t kStagesMax = 100;
constexpr size_t kPartsMax = 1000;
constexpr int64_t kRowsMax = int64_t{1} << 24;
constexpr int64_t kTokensMax = int64_t{1} << 50;

/// A value with the way to it, for messages.
struct Field {
  const std::string& file;
  std::string path;
  const Json& value;

  [[noreturn]] void refuse(std::string_view wanted) const {
    std::string shown = write_json(value);
    constexpr size_t kShownMax = 80;
    if (shown.size() > kShownMax) shown = fmt::format("{} of {} bytes", value.kind_name(), shown.size());
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {} is {}; it must be {}", file, path, shown, wanted));
  }

  [[nodiscard]] Field child(std::string_view key, const Json& json) const {
    return {file, path.empty() ? std::string(key) : fmt::format("{}.{}", path, key), json};
  }
  [[nodiscard]] std::optional<Field> find(std::string_view key) const {
    const Json* found = value.find(key);
    return found == nullptr ? std::nullopt : std::optional(child(key, *found));
  }
  [[nodiscard]] Field at(std::string_view key) const {
    std::optional<Field> found = find(key);
    if (found) return *std::move(found);
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: there is no \"{}\" in {}", file, key, path.empty() ? "the recipe" : path));
  }
  /// Refuses anything but an object of these keys.
  void check_keys(std::initializer_list<std::string_view> known) const {
    if (!value.is_object()) refuse("an object");
    for (const JsonMember& member : value.as_object()) {
      if (std::ranges::find(known, member.key) != known.end()) continue;
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: \"{}\" is no key{}; there are: {}", file, member.key,
                              path.empty() ? "" : " of " + path, name_list({known.begin(), known.size()})));
    }
  }
  [[nodiscard]] std::vector<Field> items(size_t count_max) const {
    if (!value.is_array() || value.as_array().empty() || value.as_array().size() > count_max) {
      refuse(fmt::format("a list of 1 to {}", count_max));
    }
    std::vector<Field> fields;
    fields.reserve(value.as_array().size());
    for (const Json& item : value.as_array())
      fields.push_back({file, fmt::format("{}[{}]", path, fields.size()), item});
    return fields;
  }
  [[nodiscard]] const std::string& string() const {
    if (!value.is_string() || value.as_string().empty()) refuse("a text");
    return value.as_string();
  }
  [[nodiscard]] int64_t integer(int64_t low, int64_t high) const {
    const bool is_integer = value.kind() == Json::Kind::kInteger;
    const std::optional<int64_t> number = is_integer ? value.try_int64() : std::nullopt;
    if (!number || *number < low || *number > high) refuse(fmt::format("an integer from {} to {}", low, high));
    return *number;
  }
  [[nodiscard]] size_t rows() const { return static_cast<size_t>(integer(2, kRowsMax)); }
  [[nodiscard]] double number(double low, double high) const {
    const bool is_number = value.kind() == Json::Kind::kInteger || value.kind() == Json::Kind::kReal;
    const double real = is_number ? value.as_double() : std::numeric_limits<double>::quiet_NaN();
    if (!(real >= low && real <= high)) refuse(fmt::format("a number from {} to {}", low, high));
    return real;
  }
};

struct RoundingName {
  std::string_view name;
  bool Qat::*field;
};
constexpr std::array<RoundingName, 6> kRoundings = {{{"weights", &Qat::weights},
                                                     {"experts", &Qat::experts},
                                                     {"activations", &Qat::activations},
                                                     {"window", &Qat::window},
                                                     {"entries", &Qat::entries},
                                                     {"index", &Qat::index}}};

Qat read_rounding(const Field& field) {
  if (field.value.is_string() && field.value.as_string() == "none") return {};
  if (field.value.is_string() && field.value.as_string() == "all") return kFullQat;
  if (!field.value.is_array()) field.refuse("\"none\", \"all\" or a list");
  Qat qat;
  for (const Field& item : field.items(kRoundings.size())) {
    const auto* const found = item.value.is_string()
                                  ? std::ranges::find(kRoundings, item.value.as_string(), &RoundingName::name)
                                  : kRoundings.end();
    if (found == kRoundings.end()) item.refuse("weights, experts, activations, window, entries or index");
    qat.*(found->field) = true;
  }
  return qat;
}

RecipeStage::Rate read_rate(const Field& field) {
  field.check_keys({"peak", "last", "warm_up", "flat", "cosine"});
  RecipeStage::Rate rate;
  constexpr double kRateMax = 10;
  rate.peak = field.at("peak").number(0, kRateMax);
  rate.last = field.at("last").number(0, rate.peak);
  rate.warm_up = field.at("warm_up").number(0, 1);
  rate.flat = field.at("flat").number(rate.warm_up, 1);
  rate.cosine = field.at("cosine").number(rate.flat, 1);
  return rate;
}

/// One number, or two in order.
void read_length(const Field& field, size_t batch_rows, RecipePart& part) {
  const auto high = static_cast<int64_t>(batch_rows);
  if (!field.value.is_array()) {
    part.length_max = static_cast<size_t>(field.integer(2, high));
    part.length_min = part.length_max;
    return;
  }
  const std::vector<Field> bounds = field.items(2);
  if (bounds.size() != 2) field.refuse("a number of tokens, or the least and the most");
  part.length_min = static_cast<size_t>(bounds[0].integer(2, high));
  part.length_max = static_cast<size_t>(bounds[1].integer(bounds[0].integer(2, high), high));
}

RecipePart read_part(const Field& field, size_t batch_rows) {
  field.check_keys({"texts", "task", "weight", "loss_weight", "length", "words", "word_dropout"});
  RecipePart part;
  const std::optional<Field> texts = field.find("texts");
  const std::optional<Field> task = field.find("task");
  if (texts.has_value() == task.has_value()) field.refuse("an object with either \"texts\" or \"task\"");
  if (texts) part.texts = texts->string();
  if (task) {
    part.task = task->string();
    const auto names = task_names();
    if (std::ranges::find(names, part.task) == names.end()) task->refuse(fmt::format("one of {}", name_list(names)));
  }
  constexpr double kWeightMin = 1e-6;
  constexpr double kWeightMax = 1e6;
  part.weight = field.at("weight").number(kWeightMin, kWeightMax);
  if (const std::optional<Field> loss = field.find("loss_weight"))
    part.loss_weight = loss->number(kWeightMin, kWeightMax);
  if (const std::optional<Field> words = field.find("words")) {
    if (part.task != "recall") words->refuse("left out: it is for the task recall alone");
    part.words = static_cast<size_t>(words->integer(kTaskWordsMin, static_cast<int64_t>(task_words().size())));
  }
  constexpr double kDropoutMax = 0.9;
  if (const std::optional<Field> share = field.find("word_dropout")) {
    if (part.task != "help") share->refuse("left out: it is for the task help alone");
    part.word_dropout = share->number(0, kDropoutMax);
  }
  part.length_max = texts ? batch_rows : std::min(batch_rows, kTaskLengthMax);
  part.length_min = texts ? batch_rows : std::min(batch_rows, TaskOptions{}.length_min);
  if (const std::optional<Field> length = field.find("length")) {
    if (task && !takes_length(part.task))
      length->refuse(
          "left out: it is for texts, recall, needle and copy; other tasks' dialogues are as long as they are");
    if (texts && length->value.is_array()) length->refuse("a number of tokens: documents have no least");
    read_length(*length, batch_rows, part);
  }
  return part;
}

/// Which of two names the key says, the first where it is absent: 0 or 1.
size_t read_choice(const Field& field, std::string_view key, const std::array<std::string_view, 2>& names) {
  const std::optional<Field> choice = field.find(key);
  if (!choice) return 0;
  const auto* const found =
      choice->value.is_string() ? std::ranges::find(names, choice->value.as_string()) : names.end();
  if (found == names.end()) choice->refuse(fmt::format("\"{}\" or \"{}\"", names[0], names[1]));
  return static_cast<size_t>(found - names.begin());
}

RecipeStage read_stage(const Field& field) {
  field.check_keys({"name", "tokens", "step_rows", "batch_rows", "rate", "clip_norm", "optimizer", "rounding",
                    "exploration", "replay", "sliding_window", "trains", "mixture"});
  RecipeStage stage;
  stage.name = field.at("name").string();
  stage.tokens = field.at("tokens").integer(1, kTokensMax);
  stage.batch_rows = field.at("batch_rows").rows();
  const Field step = field.at("step_rows");
  stage.step_rows = step.rows();
  if (stage.step_rows % stage.batch_rows != 0)
    step.refuse(fmt::format("a multiple of batch_rows, {}", stage.batch_rows));
  stage.rate = read_rate(field.at("rate"));
  constexpr double kClipNormMax = 1e9;
  if (const std::optional<Field> norm = field.find("clip_norm")) stage.clip_norm = norm->number(0, kClipNormMax);
  if (const std::optional<Field> rounding = field.find("rounding")) stage.rounding = read_rounding(*rounding);
  constexpr double kExplorationMax = 16;
  if (const std::optional<Field> share = field.find("exploration"))
    stage.exploration = share->number(0, kExplorationMax);
  stage.optimizer = static_cast<MatrixOptimizer>(read_choice(field, "optimizer", {"muon", "adamw"}));
  stage.replay = static_cast<RecipeStage::Replay>(read_choice(field, "replay", {"bounded", "full"}));
  stage.trains = static_cast<RecipeStage::Trains>(read_choice(field, "trains", {"model", "drafts"}));
  if (const std::optional<Field> window = field.find("sliding_window")) {
    if (stage.trains == RecipeStage::Trains::kDrafts) window->refuse("left out: drafts see the config's window");
    stage.sliding_window = window->rows();
  }
  const std::vector<Field> parts = field.at("mixture").items(kPartsMax);
  stage.mixture.reserve(parts.size());
  for (const Field& part : parts)
    stage.mixture.push_back(read_part(part, stage.batch_rows));
  return stage;
}

}  // namespace

int64_t RecipeStage::steps() const {
  const auto rows = static_cast<int64_t>(step_rows);
  return (tokens + rows - 1) / rows;
}

LearningRateSchedule RecipeStage::schedule() const {
  const auto step_at = [&](double share) { return std::llround(share * static_cast<double>(steps())); };
  return {.peak = rate.peak,
          .last = rate.last,
          .warm_up_end = step_at(rate.warm_up),
          .flat_end = step_at(rate.flat),
          .cosine_end = step_at(rate.cosine)};
}

Recipe parse_recipe(std::string_view json, const std::string& name) {
  Json root;
  try {
    root = parse_json(json, {.depth_max = 16, .bytes_max = kRecipeBytesMax});
  } catch (const Error& error) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}", name, error.what()));
  }
  const Field field{name, "", root};
  if (!root.is_object()) throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: a recipe is a JSON object", name));
  field.check_keys({"format", "name", "seed", "config", "tokenizer", "stages"});
  (void)field.at("format").integer(kFormat, kFormat);
  Recipe recipe;
  recipe.name = field.at("name").string();
  recipe.seed = static_cast<uint64_t>(field.at("seed").integer(0, std::numeric_limits<int64_t>::max()));
  if (const std::optional<Field> config = field.find("config")) recipe.config = config->string();
  if (const std::optional<Field> tokenizer = field.find("tokenizer")) recipe.tokenizer = tokenizer->string();
  for (const Field& stage : field.at("stages").items(kStagesMax)) {
    recipe.stages.push_back(read_stage(stage));
    const auto before = std::span(recipe.stages).first(recipe.stages.size() - 1);
    if (std::ranges::find(before, recipe.stages.back().name, &RecipeStage::name) != before.end()) {
      stage.at("name").refuse("a name that no other stage has");
    }
  }
  return recipe;
}

Recipe load_recipe(const std::filesystem::path& file) {
  return parse_recipe(read_file(file, kRecipeBytesMax), file.string());
}

}  // namespace tidepool
