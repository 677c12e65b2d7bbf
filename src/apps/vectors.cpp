#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "apps/command.h"
#include "apps/output.h"
#include "base/error.h"
#include "text/tokenizer.h"
#include "text/vectors.h"

namespace tidepool {
namespace {

constexpr const char* kVectorsExamples =
    "Examples:\n"
    "  echo '{\"id\": 1, \"text\": \"Hello\"}' | tidepool vectors tokenize MODEL\n"
    "  echo '{\"id\": 1, \"ids\": [19923]}' | tidepool vectors detokenize tokenizer.json\n"
    "  tidepool vectors prompt-ids MODEL < cases.jsonl > answers.jsonl\n"
    "  tidepool vectors parse-stream < cases.jsonl\n"
    "\n"
    "One JSON object a line in, one a line out, in the same order; docs/vectors.md has the fields. MODEL is a\n"
    "model's folder or a tokenizer.json; encode, request, parse and parse-stream need none.";

struct VectorsFlags {
  std::string kind;
  std::optional<std::string> model;
  bool wants_json = false;
};

std::optional<Tokenizer> load_tokenizer(VectorKind kind, const VectorsFlags& flags) {
  if (!needs_tokenizer(kind)) return std::nullopt;
  if (!flags.model) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("vectors {} needs a tokenizer: name a model's folder or a tokenizer.json", flags.kind));
  }
  const std::filesystem::path path = *flags.model;
  return Tokenizer::load(std::filesystem::is_directory(path) ? path / "tokenizer.json" : path);
}

int answer_lines(const VectorsFlags& flags) {
  const VectorKind kind = try_vector_kind(flags.kind).value();  // the command line was checked
  const std::optional<Tokenizer> tokenizer = load_tokenizer(kind, flags);
  Output output(Output::kStandardOutput);
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line.empty()) continue;
    output.write(answer_vector(kind, line, tokenizer ? &*tokenizer : nullptr) + "\n");
  }
  return kExitOk;
}

}  // namespace

void add_vectors_command(CLI::App& program, Invocation& invocation) {
  CLI::App* command = program.add_subcommand("vectors", "check the text side: cases in, the engine's answers out");
  const auto flags = std::make_shared<VectorsFlags>();
  command->add_option("KIND", flags->kind, "what to compute")
      ->required()
      ->check(CLI::IsMember({"tokenize", "detokenize", "encode", "request", "prompt-ids", "parse", "parse-stream"}));
  command->add_option("MODEL", flags->model, "a model's folder or a tokenizer.json");
  command->add_flag("--json", flags->wants_json, "errors of the command itself as JSON too");
  command->footer(kVectorsExamples);
  command->callback([flags, &invocation] {
    invocation.wants_json = flags->wants_json;
    invocation.body = [flags] { return answer_lines(*flags); };
  });
}

}  // namespace tidepool
