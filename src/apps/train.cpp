#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "apps/command.h"
#include "apps/output.h"
#include "apps/progress.h"
#include "apps/train_commands.h"
#include "base/error.h"
#include "base/file.h"
#include "base/thread_pool.h"
#include "text/engram_token_map.h"
#include "text/json.h"
#include "text/tokenizer.h"
#include "text/tokenizer_control.h"
#include "train/bpe_trainer.h"
#include "train/corpus.h"
#include "train/tasks.h"
#include "train/tasks_words.h"

namespace tidepool {
namespace {

constexpr const char* kTrainExamples =
    "Examples:\n"
    "  tools/fetch_corpus.sh corpus\n"
    "  tidepool train model models/pocket/recipe.json --corpus corpus --out run\n"
    "  tidepool train tokenizer --corpus corpus --vocab-size 4096 --out tokenizer.json\n"
    "  tidepool train tokenizer --corpus corpus --vocab-size 4096 --out tokenizer.json --json | jq .bytes_per_token";

constexpr const char* kTokenizerExamples =
    "Learns a byte-level vocabulary from the corpus and from generated dialogues, and writes it in the format of the\n"
    "released tokenizer.json with the control tokens of the chat format. docs/training.md says more.";

/// Eight times the released model's, and more dialogues than differ from each other.
constexpr size_t kVocabularyMax = size_t{1} << 20;
constexpr uint64_t kDialoguesMax = 10'000'000;

struct TokenizerFlags {
  std::string corpus;
  size_t vocabulary_size = 4096;
  std::string out;
  uint64_t dialogues = 2000;
  bool wants_json = false;
};

/// The dialogues are generated with this seed.
constexpr uint64_t kDialogueSeed = 1;

/// The chat format's own words, and those of the generated dialogues: what the released encoding writes.
void count_dialogues(uint64_t dialogues, PieceCounts& counts) {
  std::vector<std::unique_ptr<Task>> tasks;
  tasks.push_back(make_arithmetic_task({}));
  tasks.push_back(make_tools_task({}));
  tasks.push_back(make_help_task({}));
  for (uint64_t i = 0; i < dialogues; ++i) {
    for (const std::unique_ptr<Task>& task : tasks) {
      const Dialogue dialogue = task->make({Split::kTrain, kDialogueSeed, i});
      const ChatPrompt prompt = encode_chat_request(dialogue.request).prompt;
      for (const PromptRun& run : prompt.runs) {
        if (!run.is_control_token) counts.add(std::string_view(prompt.text).substr(run.begin, run.bytes));
      }
      counts.add(answer_text(dialogue));
    }
  }
}

/// The words that are looked up: each is to be one token, at the beginning of a line and behind a space. Small models
/// do not learn to look up words of several tokens in the time they have (docs/pocket.md).
void count_words(PieceCounts& counts) {
  constexpr uint64_t kBytesPerTime = 11000;  // of text: that is more often than the last of 4,096 tokens occurs
  const uint64_t times = counts.text_bytes() / kBytesPerTime + 1;
  for (const std::string_view word : task_words())
    counts.add(fmt::format("{} {}\n", word, word), times);
}

/// How long texts become.
struct Measure {
  uint64_t bytes = 0;
  uint64_t tokens = 0;

  [[nodiscard]] double bytes_per_token() const {
    return tokens == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(tokens);
  }
};

Measure measure(const Tokenizer& tokenizer, const std::vector<CorpusDocument>& documents, ThreadPool& pool) {
  std::vector<uint64_t> tokens(documents.size());
  pool.run(documents.size(), [&](size_t index, size_t /*worker*/) {
    tokens[index] = tokenizer.encode_plain(documents[index].text).size();
  });
  Measure total;
  for (size_t index = 0; index < documents.size(); ++index) {
    total.bytes += documents[index].text.size();
    total.tokens += tokens[index];
  }
  return total;
}

Json measure_json(const Measure& measure) {
  Json object = Json::make_object();
  object.set("bytes", Json::make_integer(static_cast<int64_t>(measure.bytes)));
  object.set("tokens", Json::make_integer(static_cast<int64_t>(measure.tokens)));
  object.set("bytes_per_token", Json::make_number(shortest_real(measure.bytes_per_token())));
  return object;
}

/// A source of the corpus in tokens of the new vocabulary.
struct SourceMeasure {
  std::string name;
  Measure train;
  Measure heldout;
};

void add(Measure& total, const Measure& part) {
  total.bytes += part.bytes;
  total.tokens += part.tokens;
}

void report(const TokenizerFlags& flags, const Tokenizer& tokenizer, const std::vector<SourceMeasure>& sources,
            std::chrono::duration<double> time) {
  const int32_t compressed = make_engram_token_map(tokenizer).compressed_vocabulary;
  const Output output(Output::kStandardOutput);
  Measure train;
  Measure heldout;
  Json list = Json::make_object();
  std::string lines;
  for (const SourceMeasure& source : sources) {
    add(train, source.train);
    add(heldout, source.heldout);
    Json splits = Json::make_object();
    splits.set("train", measure_json(source.train));
    splits.set("heldout", measure_json(source.heldout));
    list.set(source.name, std::move(splits));
    lines += fmt::format("{:<18} {:>12} bytes {:>11} tokens, held out {:.3f} bytes a token\n", source.name,
                         source.train.bytes, source.train.tokens, source.heldout.bytes_per_token());
  }
  if (!flags.wants_json) {
    output.write(lines +
                 fmt::format("{:<18} {:>12} bytes {:>11} tokens, held out {:.3f} bytes a token\n"
                             "{} ids, {} of them different to Engram (engram_compressed_vocab_size); {:.1f} s\n",
                             "all", train.bytes, train.tokens, heldout.bytes_per_token(), tokenizer.vocabulary_size(),
                             compressed, time.count()));
    return;
  }
  Json object = Json::make_object();
  object.set("vocab_size", Json::make_integer(static_cast<int64_t>(tokenizer.vocabulary_size())));
  object.set("engram_compressed_vocab_size", Json::make_integer(compressed));
  object.set("bytes_per_token", Json::make_number(shortest_real(heldout.bytes_per_token())));
  object.set("train", measure_json(train));
  object.set("heldout", measure_json(heldout));
  object.set("sources", std::move(list));
  object.set("seconds", Json::make_number(shortest_real(time.count())));
  output.write(write_json(object) + "\n");
}

int train_tokenizer(const TokenizerFlags& flags) {
  const auto start = std::chrono::steady_clock::now();
  const size_t token_count = bpe_token_count(flags.vocabulary_size);
  const Corpus corpus = Corpus::load(flags.corpus);
  Progress progress;
  PieceCounts counts;
  for (size_t i = 0; i < corpus.sources().size(); ++i) {
    progress.update("counting words", i, corpus.sources().size());
    for (const CorpusDocument& document : corpus.sources()[i].train)
      counts.add(document.text);
  }
  count_dialogues(flags.dialogues, counts);
  count_words(counts);
  progress.finish();
  const BpeVocabulary vocabulary = train_bpe(counts.sorted(), {.token_count = token_count});
  const std::string json = write_tokenizer_json(vocabulary);
  const Tokenizer tokenizer = Tokenizer::parse(json, flags.out);
  (void)require_control_tokens(tokenizer, tokenizer.vocabulary_size());
  write_file_atomically(flags.out, json);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;

  ThreadPool pool;
  std::vector<SourceMeasure> sources;
  sources.reserve(corpus.sources().size());
  for (const CorpusSource& source : corpus.sources()) {
    progress.update("measuring", sources.size(), corpus.sources().size());
    sources.push_back({source.name, measure(tokenizer, source.train, pool), measure(tokenizer, source.heldout, pool)});
  }
  progress.finish();
  report(flags, tokenizer, sources, time);
  return kExitOk;
}

void add_tokenizer_command(CLI::App& train, Invocation& invocation) {
  CLI::App* command = train.add_subcommand("tokenizer", "learn a vocabulary from a corpus");
  const auto flags = std::make_shared<TokenizerFlags>();
  command->add_option("--corpus", flags->corpus, "folder that tools/fetch_corpus.sh filled")->required();
  command->add_option("--vocab-size", flags->vocabulary_size, "ids, the control tokens among them")
      ->check(CLI::Range(size_t{1}, kVocabularyMax))
      ->capture_default_str();
  command->add_option("--out", flags->out, "the tokenizer.json to write")->required();
  command
      ->add_option(
          "--dialogues", flags->dialogues,
          "generated dialogues of each kind that are counted with the corpus, for the words of the chat format")
      ->check(CLI::Range(size_t{0}, kDialoguesMax))
      ->capture_default_str();
  command->add_flag("--json", flags->wants_json, "one JSON object on standard output");
  command->footer(kTokenizerExamples);
  command->callback([flags, &invocation] {
    invocation.wants_json = flags->wants_json;
    invocation.body = [flags] { return train_tokenizer(*flags); };
  });
}

}  // namespace

void add_train_command(CLI::App& program, Invocation& invocation) {
  CLI::App* command = program.add_subcommand("train", "train a model of this architecture");
  command->require_subcommand(1);
  command->footer(kTrainExamples);
  add_tokenizer_command(*command, invocation);
  add_train_model_command(*command, invocation);
}

}  // namespace tidepool
