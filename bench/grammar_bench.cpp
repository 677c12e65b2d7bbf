// Cost of structured output with a real vocabulary. Usage: grammar_bench TOKENIZER_JSON. For a few grammars it prints
// the time to compile, and the time of masks along random outputs: at the first pass, when the masks of states are
// made, and when they are there. All times are of one core.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/grammar_matcher.h"
#include "text/tokenizer.h"

namespace {

using Clock = std::chrono::steady_clock;
using tidepool::OutputGrammar;

double microseconds(Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

struct Case {
  std::string_view name;
  OutputGrammar grammar;
};

constexpr std::string_view kToolSchema = R"({
  "type": "object",
  "properties": {
    "path": {"type": "string", "description": "File to edit"},
    "mode": {"type": "string", "enum": ["create", "replace", "insert", "delete"]},
    "line": {"type": "integer", "minimum": 1, "maximum": 1000000},
    "text": {"type": ["string", "null"], "maxLength": 4000},
    "recursive": {"type": "boolean"},
    "when": {"type": "string", "format": "date-time"},
    "edits": {"type": "array", "minItems": 1, "items": {"type": "object", "properties": {
      "old": {"type": "string"}, "new": {"type": "string"}, "count": {"type": "number", "minimum": 0}},
      "required": ["old", "new"], "additionalProperties": false}},
    "options": {"$ref": "#/$defs/options"}
  },
  "required": ["path", "mode"],
  "$defs": {"options": {"anyOf": [{"type": "object", "properties": {"kind": {"const": "fast"},
    "level": {"type": "integer"}}, "required": ["kind"]}, {"type": "object", "properties": {
    "kind": {"const": "deep"}, "inner": {"$ref": "#/$defs/options"}}, "required": ["kind"]}]}}
})";

std::vector<Case> make_cases() {
  std::vector<Case> cases(4);
  cases[0].name = "json_object";
  cases[0].grammar.content = OutputGrammar::Content::kJson;
  cases[0].grammar.schema = tidepool::parse_json(R"({"type": "object"})");
  cases[1].name = "json_schema, 8 fields";
  cases[1].grammar.content = OutputGrammar::Content::kJson;
  cases[1].grammar.schema = tidepool::parse_json(kToolSchema);
  cases[2].name = "1 tool required";
  cases[3].name = "40 tools required";
  for (const auto& [index, count] : {std::pair{2, 1}, std::pair{3, 40}}) {
    OutputGrammar& grammar = cases[static_cast<size_t>(index)].grammar;
    grammar.content = OutputGrammar::Content::kNone;
    grammar.calls = OutputGrammar::Calls::kRequired;
    for (int i = 0; i < count; ++i)
      grammar.tools.push_back({"tool_" + std::to_string(i), tidepool::parse_json(kToolSchema), true, "tools"});
  }
  return cases;
}

struct Times {
  std::vector<double> masks;  ///< microseconds each
  double accepts = 0;
  size_t tokens = 0;

  void print(const char* what) {
    std::ranges::sort(masks);
    double sum = 0;
    for (const double time : masks)
      sum += time;
    const auto count = static_cast<double>(masks.size());
    std::printf("  %-28s masks %6zu, mean %7.1f us, median %7.1f, p99 %7.1f, worst %7.1f; accept %.2f us\n", what,
                masks.size(), sum / count, masks[masks.size() / 2], masks[masks.size() * 99 / 100], masks.back(),
                accepts / count);
  }
};

/// A random allowed token, so that outputs go everywhere; long texts are cut.
void run_output(const std::shared_ptr<const tidepool::CompiledGrammar>& grammar, std::mt19937& random, Times& times) {
  constexpr size_t kTokensMax = 200;
  tidepool::GrammarMatcher matcher(grammar);
  std::vector<uint64_t> words(grammar->trie().word_count());
  std::vector<int32_t> allowed;
  while (!matcher.has_ended() && matcher.accepted_count() < kTokensMax) {
    const Clock::time_point begin = Clock::now();
    matcher.fill_mask(words);
    const Clock::time_point filled = Clock::now();
    allowed.clear();
    for (size_t i = 0; i < words.size(); ++i) {
      for (uint64_t word = words[i]; word != 0; word &= word - 1)
        allowed.push_back(static_cast<int32_t>(i * 64 + static_cast<size_t>(__builtin_ctzll(word))));
    }
    const int32_t id = allowed[random() % allowed.size()];
    const Clock::time_point chosen = Clock::now();
    if (!matcher.accept(id)) throw tidepool::Error(tidepool::ErrorCode::kCorrupt, "a masked token was refused");
    times.accepts += microseconds(Clock::now() - chosen);
    times.masks.push_back(microseconds(filled - begin));
  }
}

void run_case(const Case& entry, const std::shared_ptr<const tidepool::TokenTrie>& trie, int32_t end_id) {
  constexpr int kOutputs = 40;
  const Clock::time_point begin = Clock::now();
  tidepool::GrammarCache cache(trie, {end_id});
  const std::shared_ptr<const tidepool::CompiledGrammar> grammar = cache.get(entry.grammar);
  std::printf("%.*s: compiled in %.2f ms, %zu states, %zu KiB\n", static_cast<int>(entry.name.size()),
              entry.name.data(), microseconds(Clock::now() - begin) / 1000, grammar->automaton().state_count(),
              grammar->bytes() / 1024);
  for (const char* what : {"first pass", "same outputs again"}) {
    std::mt19937 random(1);
    Times times;
    for (int i = 0; i < kOutputs; ++i)
      run_output(grammar, random, times);
    times.print(what);
  }
  std::printf("  memory with masks %zu KiB\n", grammar->bytes() / 1024);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: grammar_bench TOKENIZER_JSON\n");
    return 2;
  }
  try {
    const tidepool::Tokenizer tokenizer = tidepool::Tokenizer::load(argv[1]);
    const Clock::time_point begin = Clock::now();
    const auto trie = std::make_shared<const tidepool::TokenTrie>(tidepool::TokenTrie::from_tokenizer(tokenizer));
    std::printf("vocabulary of %zu: tries in %.0f ms, %zu KiB, nodes %zu all, %zu and %zu without plain tokens\n",
                trie->vocabulary_size(), microseconds(Clock::now() - begin) / 1000, trie->bytes() / 1024,
                trie->tree(tidepool::PlainKind::kNone).nodes.size(),
                trie->tree(tidepool::PlainKind::kJson).nodes.size(),
                trie->tree(tidepool::PlainKind::kRaw).nodes.size());
    for (const Case& entry : make_cases())
      run_case(entry, trie, 1);
  } catch (const tidepool::Error& error) {
    std::fprintf(stderr, "grammar_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
