#include "train/mixture.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "train/name_list.h"
#include "train/random_stream.h"

namespace tidepool {
namespace {

uint64_t train_bytes(const CorpusSource& source) {
  uint64_t bytes = 0;
  for (const CorpusDocument& document : source.train)
    bytes += document.text.size();
  return bytes;
}

/// A source that a part draws on, and its share of the part.
struct PartSource {
  const CorpusSource* source = nullptr;
  double share = 1;
};

std::vector<PartSource> texts_of(const RecipePart& part, const std::string& place, const Corpus* corpus) {
  if (corpus == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} needs texts: name the folder that tools/fetch_corpus.sh filled", place));
  }
  std::vector<PartSource> sources;
  if (part.texts != "all") {
    const CorpusSource* source = corpus->find(part.texts);
    if (source != nullptr && train_bytes(*source) == 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: the corpus' source \"{}\" has no text to train on", place, part.texts));
    }
    if (source != nullptr) return {{source, 1}};
    std::vector<std::string_view> names;
    names.reserve(corpus->sources().size());
    for (const CorpusSource& known : corpus->sources())
      names.push_back(known.name);
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: the corpus has no source \"{}\"; it has: {}", place, part.texts, name_list(names)));
  }
  uint64_t total = 0;
  for (const CorpusSource& source : corpus->sources())
    total += train_bytes(source);
  if (total == 0)
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: the corpus has no text to train on", place));
  sources.reserve(corpus->sources().size());
  for (const CorpusSource& source : corpus->sources()) {
    const uint64_t bytes = train_bytes(source);
    if (bytes > 0) sources.push_back({&source, static_cast<double>(bytes) / static_cast<double>(total)});
  }
  return sources;
}

uint64_t counter_of(const std::vector<std::pair<std::string, uint64_t>>& counters, const std::string& name) {
  const auto found = std::ranges::find(counters, name, &std::pair<std::string, uint64_t>::first);
  if (found != counters.end()) return found->second;
  throw Error(ErrorCode::kCorrupt, fmt::format("the state of the run has no \"{}\"; begin it anew", name));
}

std::string place_of(const Recipe& recipe, size_t stage, size_t part) {
  return fmt::format("recipe {}, stage {}, mixture[{}]", recipe.name, recipe.stages.at(stage).name, part);
}

/// The task of a part at `place` of the recipe.
std::unique_ptr<Task> make_part_task(const RecipePart& part, const std::string& place, const SampleEncoding& encoding,
                                     const Corpus* corpus) {
  if (has_pictures(part.task) && !encoding.images) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: task {} shows pictures; give the config a vision_config", place, part.task));
  }
  const TaskOptions options{.length_min = part.length_min,
                            .length_max = part.length_max,
                            .words = part.words,
                            .word_dropout = part.word_dropout};
  try {
    return make_task(part.task, options, encoding.tokenizer, corpus);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", place, error.what()));
  }
}

std::unique_ptr<SampleSource> make_part_source(const RecipePart& part, const std::string& place, uint64_t seed,
                                               const SampleEncoding& encoding, const Corpus* corpus) {
  return make_task_source(fmt::format("{}: task {}", place, part.task), make_part_task(part, place, encoding, corpus),
                          Split::kTrain, seed, encoding);
}

/// A tokenizer may lack control tokens that only some dialogues have, so several are made.
void check_task(const RecipePart& part, const std::string& place, const SampleEncoding& encoding,
                const Corpus* corpus) {
  constexpr uint64_t kItems = 8;
  const std::unique_ptr<SampleSource> source = make_part_source(part, place, 1, encoding, corpus);
  try {
    for (uint64_t item = 0; item < kItems; ++item)
      (void)source->make(item);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", source->name(), error.what()));
  }
}

}  // namespace

void check_mixture(const Recipe& recipe, size_t stage, const SampleEncoding& encoding, const Corpus* corpus) {
  const std::vector<RecipePart>& mixture = recipe.stages.at(stage).mixture;
  for (size_t p = 0; p < mixture.size(); ++p) {
    const std::string place = place_of(recipe, stage, p);
    if (mixture[p].task.empty()) {
      (void)texts_of(mixture[p], place, corpus);
    } else {
      check_task(mixture[p], place, encoding, corpus);
    }
  }
}

Mixture::Mixture(const Recipe& recipe, size_t stage, const SampleEncoding& encoding, const Corpus* corpus,
                 ThreadPool& pool) {
  const Tokenizer& tokenizer = encoding.tokenizer;
  const RecipeStage& chosen = recipe.stages.at(stage);
  std::vector<MixturePart> parts;
  const auto add = [&](std::unique_ptr<SampleSource> source, double weight, const RecipePart& part) {
    parts.push_back({source.get(), weight, part.loss_weight});
    part_names_.push_back(part.task.empty() ? part.texts : part.task);
    sources_.push_back(std::move(source));
  };
  for (size_t p = 0; p < chosen.mixture.size(); ++p) {
    const RecipePart& part = chosen.mixture[p];
    const uint64_t seed = RandomStream(recipe.seed, chosen.name, p).next();
    const std::string place = place_of(recipe, stage, p);
    if (!part.task.empty()) {
      add(make_part_source(part, place, seed, encoding, corpus), part.weight, part);
      continue;
    }
    for (const auto& [source, share] : texts_of(part, place, corpus)) {
      const TextSourceOptions options{.split = Split::kTrain, .seed = seed, .length_max = part.length_max};
      add(make_text_source(*source, options, tokenizer, pool), part.weight * share, part);
    }
  }
  const uint64_t seed = RandomStream(recipe.seed, chosen.name, chosen.mixture.size()).next();
  packer_ =
      std::make_unique<SamplePacker>(std::move(parts), SamplePackerOptions{.rows = chosen.batch_rows, .seed = seed});
}

std::vector<std::pair<std::string, uint64_t>> position_counters(const SamplePacker::Position& position) {
  std::vector<std::pair<std::string, uint64_t>> counters = {
      {"data.window", position.window}, {"data.batch", position.batch}, {"data.parts", position.parts.size()}};
  counters.reserve(counters.size() + 2 * position.parts.size());
  for (size_t p = 0; p < position.parts.size(); ++p) {
    counters.emplace_back(fmt::format("data.{}.place", p), position.parts[p].place);
    counters.emplace_back(fmt::format("data.{}.tokens", p), position.parts[p].tokens);
  }
  return counters;
}

SamplePacker::Position counters_position(const std::vector<std::pair<std::string, uint64_t>>& counters) {
  SamplePacker::Position position;
  position.window = counter_of(counters, "data.window");
  position.batch = counter_of(counters, "data.batch");
  const uint64_t parts = counter_of(counters, "data.parts");
  if (parts > counters.size()) {
    throw Error(ErrorCode::kCorrupt, fmt::format("the state of the run has \"data.parts\" {}; begin it anew", parts));
  }
  position.parts.reserve(parts);
  for (uint64_t p = 0; p < parts; ++p) {
    position.parts.push_back({.place = counter_of(counters, fmt::format("data.{}.place", p)),
                              .tokens = counter_of(counters, fmt::format("data.{}.tokens", p))});
  }
  return position;
}

}  // namespace tidepool
