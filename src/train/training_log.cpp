#include "train/training_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "text/json.h"

namespace tidepool {

namespace {

Json real(double value) {
  return std::isfinite(value) ? Json::make_number(shortest_real(value)) : Json();
}

/// Reads the members of one line; what is wrong is said with its place.
class LineReader {
 public:
  LineReader(std::string_view line, const std::string& name, size_t number) : name_(name), number_(number) {
    try {
      object_ = parse_json(line);
    } catch (const Error& error) {
      refuse(error.what());
    }
  }

  [[nodiscard]] uint64_t count(std::string_view key) const {
    const Json& value = member(key);
    const bool is_integer = value.kind() == Json::Kind::kInteger;
    const int64_t number = is_integer ? value.try_int64().value_or(-1) : -1;
    if (number < 0) refuse(fmt::format("\"{}\" is not a count", key));
    return static_cast<uint64_t>(number);
  }
  [[nodiscard]] double real(std::string_view key) const { return number(member(key), key); }
  [[nodiscard]] std::map<std::string, double> reals(std::string_view key) const {
    const Json& value = member(key);
    if (!value.is_object()) refuse(fmt::format("\"{}\" is not an object", key));
    std::map<std::string, double> numbers;
    for (const JsonMember& entry : value.as_object())
      numbers[entry.key] = number(entry.value, entry.key);
    return numbers;
  }
  [[nodiscard]] std::string text(std::string_view key) const {
    const Json& value = member(key);
    if (!value.is_string()) refuse(fmt::format("\"{}\" is not a text", key));
    return value.as_string();
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("{}:{}: {}; it is not the log of a training run", name_, number_, what));
  }
  [[nodiscard]] double number(const Json& value, std::string_view key) const {
    if (value.is_null()) return NAN;
    if (value.kind() != Json::Kind::kReal && value.kind() != Json::Kind::kInteger)
      refuse(fmt::format("\"{}\" is not a number", key));
    return value.as_double();
  }
  [[nodiscard]] const Json& member(std::string_view key) const {
    const Json* value = object_.find(key);
    if (value == nullptr) refuse(fmt::format("there is no \"{}\"", key));
    return *value;
  }

  const std::string& name_;
  size_t number_;
  Json object_;
};

constexpr uint64_t kLogBytesMax = uint64_t{1} << 30U;  // five million steps

std::string joined(const std::vector<TrainingStep>& steps) {
  std::string text;
  for (const TrainingStep& step : steps)
    text += log_line(step) + "\n";
  return text;
}

}  // namespace

std::string log_line(const TrainingStep& step) {
  Json line = Json::make_object();
  line.set("stage", Json::make_integer(static_cast<int64_t>(step.stage)));
  line.set("stage_name", Json::make_string(step.stage_name));
  line.set("step", Json::make_integer(static_cast<int64_t>(step.step)));
  line.set("tokens", Json::make_integer(static_cast<int64_t>(step.tokens)));
  line.set("loss", real(step.loss));
  line.set("balance_loss", real(step.balance_loss));
  line.set("index_loss", real(step.index_loss));
  line.set("rate", real(step.rate));
  line.set("gradient_norm", real(step.gradient_norm));
  line.set("tokens_per_second", real(step.tokens_per_second));
  Json parts = Json::make_object();
  for (const auto& [name, loss] : step.part_losses)
    parts.set(name, real(loss));
  line.set("part_losses", std::move(parts));
  return write_json(line);
}

std::vector<TrainingStep> parse_training_log(std::string_view text, const std::string& name) {
  std::vector<TrainingStep> steps;
  size_t number = 0;
  for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    const LineReader line(text.substr(0, end), name, ++number);
    text.remove_prefix(end + 1);
    TrainingStep& step = steps.emplace_back();
    step.stage = line.count("stage");
    step.stage_name = line.text("stage_name");
    step.step = line.count("step");
    step.tokens = line.count("tokens");
    step.loss = line.real("loss");
    step.balance_loss = line.real("balance_loss");
    step.index_loss = line.real("index_loss");
    step.rate = line.real("rate");
    step.gradient_norm = line.real("gradient_norm");
    step.tokens_per_second = line.real("tokens_per_second");
    step.part_losses = line.reals("part_losses");
  }
  return steps;
}

std::vector<LossCurve> loss_curves(const std::vector<TrainingStep>& steps) {
  std::vector<LossCurve> curves;
  uint64_t stage = 0;
  for (const TrainingStep& step : steps) {
    if (curves.empty() || step.stage != stage) curves.push_back({step.stage_name, {}});
    stage = step.stage;
    curves.back().points.push_back({static_cast<double>(step.tokens), step.loss});
  }
  return curves;
}

TrainingLog::TrainingLog(std::filesystem::path file, uint64_t stage, uint64_t step) : file_(std::move(file)) {
  if (std::filesystem::exists(file_)) steps_ = parse_training_log(read_file(file_, kLogBytesMax), file_.string());
  std::erase_if(steps_, [&](const TrainingStep& logged) {
    return std::pair(logged.stage, logged.step) > std::pair(stage, step);
  });
  write_file_atomically(file_, joined(steps_));
}

void TrainingLog::sync() const {
  real_file_system().open(file_, FileSystem::Mode::kReadWrite)->sync();
}

void TrainingLog::append(const TrainingStep& step) {
  steps_.push_back(step);
  std::ofstream out(file_, std::ios::binary | std::ios::app);
  out << log_line(step) << '\n' << std::flush;
  if (!out) {
    throw Error(ErrorCode::kIo,
                fmt::format("{}: the step cannot be written; is the disk full? The run goes on from its last saved "
                            "state when it is started again",
                            file_.string()));
  }
}

}  // namespace tidepool
