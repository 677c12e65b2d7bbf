#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/cache_flags.h"
#include "apps/chat_flags.h"
#include "apps/command.h"
#include "apps/engine_flags.h"
#include "apps/output.h"
#include "apps/sampling_flags.h"
#include "apps/timed_turn.h"
#include "base/error.h"
#include "base/file.h"
#include "image/decode.h"
#include "session/image_source.h"

namespace tidepool {
namespace {

constexpr const char* kRunExamples =
    "Examples:\n"
    "  tidepool run MODEL -p \"Why is the sky blue?\" --max-tokens 200\n"
    "  tidepool run MODEL --system \"Answer in one word.\" --no-thinking -p \"Capital of Peru?\"\n"
    "  cat letter.txt | tidepool run MODEL -p - --temperature 0 > answer.txt\n"
    "  tidepool run MODEL --image photo.jpg -p \"What is this?\"\n"
    "  tidepool run MODEL --raw -p \"Once upon a time\" --seed 7\n"
    "  tidepool run MODEL --request request.json --json | jq .content\n"
    "  tidepool run MODEL --prompt-ids 0,17,42 --temperature 0 --json | jq .output_ids\n"
    "\n"
    "The answer goes to standard output, thinking and everything else to standard error. Sampling options that are "
    "not\n"
    "given come from the model's generation_config.json if it has one, otherwise from the values in brackets.";

/// The largest request body the protocols allow.
constexpr uint64_t kRequestBytesMax = uint64_t{48} << 20;

struct RunFlags {
  EngineFlags engine;
  CacheFlags cache;
  SamplingFlags sampling;
  ChatFlags chat;
  std::optional<std::string> prompt;
  std::vector<int32_t> prompt_ids;
  std::vector<std::string> images;
  std::optional<std::string> request;
  std::optional<int64_t> logprobs;
  bool is_raw = false;
  bool wants_json = false;
};

/// All of standard input; the line feed at its end, which `echo` adds, is not part of the prompt.
std::string read_standard_input() {
  std::string text{std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

std::string prompt_text(const RunFlags& flags) {
  if (flags.prompt && *flags.prompt != "-") return *flags.prompt;
  if (!flags.prompt && ::isatty(STDIN_FILENO) == 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "there is no prompt: give one with -p TEXT, or -p - and the text on standard input");
  }
  return read_standard_input();
}

TurnRequest ids_turn(const RunFlags& flags, const LoadedModel& model) {
  TurnRequest turn;
  turn.prompt = flags.prompt_ids;
  turn.output.kind = model.has_tokenizer() ? OutputFormat::Kind::kRaw : OutputFormat::Kind::kIds;
  turn.generation.stop_ids = model.stop_ids();
  if (turn.output.kind == OutputFormat::Kind::kIds && !flags.wants_json)
    (void)model.tokenizer();  // says what is missing
  return turn;
}

/// Text as it is. Control tokens written in it count, and it begins with the begin-of-sentence token in any case.
TurnRequest raw_turn(const RunFlags& flags, const LoadedModel& model) {
  TurnRequest turn;
  turn.prompt = model.tokenizer().encode(prompt_text(flags));
  const auto begin = static_cast<int32_t>(model.config().bos_token_id);
  if (turn.prompt.empty() || turn.prompt.front() != begin) turn.prompt.insert(turn.prompt.begin(), begin);
  turn.output.kind = OutputFormat::Kind::kRaw;
  turn.generation.stop_ids = model.stop_ids();
  return turn;
}

/// The pictures of --image. Called before the model is loaded, so that a wrong file is known at once.
std::vector<ContentBlock> read_images(const RunFlags& flags) {
  std::vector<ContentBlock> blocks;
  for (const std::string& file : flags.images) {
    const std::string bytes = read_file(file, ImageLimits{}.bytes_max);
    (void)decode_image(std::as_bytes(std::span(bytes)), file);
    blocks.push_back(make_image_block(std::as_bytes(std::span(bytes))));
  }
  return blocks;
}

ChatRequest chat_request(const RunFlags& flags, std::vector<ContentBlock> images) {
  if (flags.request) {
    const std::string body =
        *flags.request == "-" ? read_standard_input() : read_file(*flags.request, kRequestBytesMax);
    return parse_chat_request(parse_json(body));
  }
  ChatRequest request = make_chat_request(flags.chat);
  ChatMessage message = make_message(ChatRole::kUser, prompt_text(flags));
  message.content.insert(message.content.begin(), std::make_move_iterator(images.begin()),
                         std::make_move_iterator(images.end()));
  request.messages.push_back(std::move(message));
  return request;
}

TurnRequest make_turn(const RunFlags& flags, const LoadedModel& model, std::vector<ContentBlock> images,
                      std::vector<std::string>& missing) {
  TurnRequest turn;
  if (!flags.prompt_ids.empty()) {
    turn = ids_turn(flags, model);
  } else if (flags.is_raw) {
    turn = raw_turn(flags, model);
  } else {
    turn = make_chat_turn(model, chat_request(flags, std::move(images)), missing);
  }
  apply_sampling_flags(flags.sampling, model.defaults(), turn.generation);
  apply_engine_flags(flags.engine, turn.generation);
  turn.drafts = draft_options(flags.engine, flags.sampling.seed.has_value());
  turn.output.stops = flags.sampling.stops;
  turn.generation.sampling.top_logprobs = flags.logprobs;
  return turn;
}

Json strings_json(const std::vector<std::string>& strings) {
  Json::Array array;
  for (const std::string& string : strings)
    array.push_back(Json::make_string(string));
  return Json::make_array(std::move(array));
}

/// Shows an answer while it is written.
class Printer {
 public:
  void operator()(const CompletionEvent& event) {
    switch (event.kind) {
      case CompletionEvent::Kind::kReasoning:
        // Someone who reads along wants to see that there is thinking; a log of standard error does not.
        if (error_.is_terminal()) error_.write(error_.dimmed(without_controls(event.text)));
        has_reasoning_ = true;
        return;
      case CompletionEvent::Kind::kContent: begin_content(); return output_.write_foreign(event.text);
      case CompletionEvent::Kind::kToolCallStart:
        begin_content();
        return output_.write_foreign(fmt::format("\n[call {}] ", event.text));
      case CompletionEvent::Kind::kArguments: return output_.write_foreign(event.text);
      case CompletionEvent::Kind::kToolCallEnd: return output_.write("\n");
      case CompletionEvent::Kind::kStop: return;
    }
  }
  void finish(const TurnResult& result, const TurnTimes& times) {
    output_.write("\n");
    if (!result.completion.reasoning.empty() && result.completion.content.empty() && result.completion.calls.empty()) {
      error_.write(
          "\ntidepool: note: the output ended before the thinking did; a larger --max-tokens, a lower --effort "
          "or --no-thinking leaves room for an answer\n");
    }
    if (error_.is_terminal()) error_.write(error_.dimmed(fmt::format("[{}]", turn_summary(result, times))) + "\n");
  }

 private:
  void begin_content() {
    if (has_reasoning_ && error_.is_terminal()) error_.write("\n\n");
    has_reasoning_ = false;
  }

  Output output_{Output::kStandardOutput};
  Output error_{Output::kStandardError};
  bool has_reasoning_ = false;
};

int run(const RunFlags& flags) {
  std::vector<ContentBlock> images = read_images(flags);
  const auto start = std::chrono::steady_clock::now();
  const std::unique_ptr<LoadedModel> model = load_model(flags.engine);
  TurnTimes times;
  times.load = std::chrono::steady_clock::now() - start;
  std::vector<std::string> missing;
  const TurnRequest turn = make_turn(flags, *model, std::move(images), missing);
  const std::unique_ptr<KvCache> cache = open_cache(flags.cache, *model);
  Conversation conversation(*model, *cache);
  if (flags.wants_json) {
    const TurnResult result = run_timed(conversation, turn, {}, {}, times);
    Json object = turn_json(*model, turn, result, times);
    if (!missing.empty()) object.set("missing_control_tokens", strings_json(missing));
    Output(Output::kStandardOutput).write(write_json(object) + "\n");
    return kExitOk;
  }
  note_missing_control_tokens(missing);
  Printer printer;
  const TurnResult result = run_timed(
      conversation, turn, [&](const CompletionEvent& event) { printer(event); }, {}, times);
  printer.finish(result, times);
  return kExitOk;
}

}  // namespace

void add_run_command(CLI::App& program, Invocation& invocation) {
  CLI::App* command = program.add_subcommand("run", "one prompt in, text out");
  const auto flags = std::make_shared<RunFlags>();
  add_engine_flags(*command, flags->engine);
  add_draft_flag(*command, flags->engine);
  add_cache_flags(*command, flags->cache);
  CLI::Option* prompt = command->add_option("-p,--prompt", flags->prompt, "the prompt; - reads standard input");
  CLI::Option* ids =
      command->add_option("--prompt-ids", flags->prompt_ids, "the prompt as token ids, separated by commas")
          ->delimiter(',')
          ->excludes(prompt);
  CLI::Option* request =
      command
          ->add_option("--request", flags->request,
                       "file with a chat completions body: its messages, tools and thinking; - reads standard input")
          ->excludes(prompt)
          ->excludes(ids);
  CLI::Option* raw = command->add_flag("--raw", flags->is_raw, "the prompt goes in as it is, without the chat format")
                         ->excludes(request)
                         ->excludes(ids);
  command
      ->add_option("--image", flags->images,
                   "a picture in front of the prompt: JPEG, PNG, WebP or GIF; may be given several times")
      ->excludes(ids)
      ->excludes(request)
      ->excludes(raw);
  add_chat_flags(*command, flags->chat);
  add_sampling_flags(*command, flags->sampling);
  command->add_option("--logprobs", flags->logprobs,
                      "with --json: log-probability of each token and of the N (0 to 20) most likely ones");
  command->add_flag("--json", flags->wants_json, "one JSON object on standard output (docs/commands.md)");
  command->footer(kRunExamples);
  command->callback([flags, &invocation] {
    invocation.wants_json = flags->wants_json;
    invocation.body = [flags] { return run(*flags); };
  });
}

}  // namespace tidepool
