#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/cache_flags.h"
#include "apps/chat_flags.h"
#include "apps/chat_transcript.h"
#include "apps/command.h"
#include "apps/engine_flags.h"
#include "apps/interrupts.h"
#include "apps/line_editor.h"
#include "apps/output.h"
#include "apps/sampling_flags.h"
#include "apps/timed_turn.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "image/decode.h"
#include "session/image_prompt.h"
#include "session/image_source.h"

namespace tidepool {
namespace {

constexpr const char* kChatExamples =
    "Examples:\n"
    "  tidepool chat MODEL\n"
    "  tidepool chat MODEL --effort low --system \"You are terse.\"\n"
    "  tidepool chat MODEL --no-thinking --temperature 0.6 --max-tokens 500\n"
    "  printf 'Hello\\nAnd now in French\\n' | tidepool chat MODEL --no-thinking\n"
    "\n"
    "In the conversation, /help lists the commands; Ctrl-C stops an answer, Ctrl-D ends the program.";

constexpr std::string_view kHelp =
    "/effort [low|high|max|1..100|off]  how thoroughly to think\n"
    "/system [TEXT]                     another system message, from the next turn on; alone: show it\n"
    "/image FILE                        show a picture with the next message; several times for several\n"
    "/save FILE                         write the conversation as JSON, for run --request\n"
    "/reset                             forget the conversation, keep the system message\n"
    "/exit                              end (also Ctrl-D)\n"
    "Ctrl-C stops an answer. A line that begins with // is sent with one of the slashes.\n";

struct ChatCommandFlags {
  EngineFlags engine;
  CacheFlags cache;
  SamplingFlags sampling;
  ChatFlags chat;
};

/// What Ctrl-C stops: the answer under way, otherwise the program, unless someone types: the line editor has the key
/// then, and a signal that comes all the same is let pass.
class Stopper {
 public:
  void on_interrupt() {
    const std::lock_guard lock(mutex_);
    if (answer_) {
      answer_->request_stop();
    } else if (!is_typing_) {
      std::_Exit(kExitInterrupted);
    }
  }
  void begin_typing() {
    const std::lock_guard lock(mutex_);
    is_typing_ = true;
  }
  [[nodiscard]] std::stop_token begin_answer() {
    const std::lock_guard lock(mutex_);
    return answer_.emplace().get_token();
  }
  void end_answer() {
    const std::lock_guard lock(mutex_);
    answer_.reset();
  }

 private:
  std::mutex mutex_;
  std::optional<std::stop_source> answer_;
  bool is_typing_ = false;
};

/// Shows an answer on standard output: thinking only to someone who watches, faint where that can be shown.
class AnswerPrinter {
 public:
  explicit AnswerPrinter(Output& output) : output_(output) {}

  void operator()(const CompletionEvent& event) {
    if (event.kind == CompletionEvent::Kind::kReasoning) {
      if (!output_.is_terminal()) return;
      if (!is_thinking_ && !output_.shows_styles()) output_.write("(thinking) ");
      is_thinking_ = true;
      output_.write(output_.dimmed(without_controls(event.text)));
    } else if (event.kind == CompletionEvent::Kind::kContent) {
      if (std::exchange(is_thinking_, false)) output_.write("\n\n");
      output_.write_foreign(event.text);
    }
  }

 private:
  Output& output_;
  bool is_thinking_ = false;
};

/// A conversation in the terminal.
class Chat {
 public:
  Chat(const LoadedModel& model, KvCache& cache, const ChatCommandFlags& flags, Stopper& stopper)
      : model_(model),
        flags_(flags),
        stopper_(stopper),
        conversation_(model, cache),
        request_(make_chat_request(flags.chat)) {}

  void run() {
    if (editor_.is_terminal()) {
      stopper_.begin_typing();
      output_.write(output_.dimmed("Ctrl-C stops an answer, /help lists the commands, Ctrl-D ends.") + "\n");
    }
    while (true) {
      const LineEditor::Input input = editor_.read("> ");
      if (input.outcome == LineEditor::Outcome::kEnd) break;
      if (input.outcome == LineEditor::Outcome::kInterrupted || input.line.empty()) continue;
      if (!take(input.line)) return;
    }
    if (editor_.is_terminal()) output_.write("\n");
  }

 private:
  /// One line: a command or a message. What goes wrong is said, and the conversation goes on. False to end.
  [[nodiscard]] bool take(const std::string& line) {
    try {
      if (line.starts_with("//")) {
        answer(line.substr(1));
      } else if (line.front() == '/') {
        return obey(line);
      } else {
        answer(line);
      }
    } catch (const OutputFailed&) {
      throw;  // every further answer would be lost too
    } catch (const Error& error) {
      error_.write(
          fmt::format("tidepool: error: {}\n", printable(error.what(), std::string_view(error.what()).size())));
    }
    return true;
  }

  [[nodiscard]] bool obey(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    std::string argument = space == std::string::npos ? "" : line.substr(space + 1);
    argument.erase(0, argument.find_first_not_of(' '));
    if (name == "/exit" || name == "/quit") return false;
    if (name == "/help") {
      say(kHelp);
    } else if (name == "/effort") {
      set_effort(argument);
    } else if (name == "/system") {
      set_system(argument);
    } else if (name == "/image") {
      add_image(argument);
    } else if (name == "/save") {
      save(argument);
    } else if (name == "/reset") {
      reset();
    } else {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("{} is not a command; /help lists them, and // sends a line that begins with a slash", name));
    }
    return true;
  }

  void say(std::string_view text) { output_.write(output_.dimmed(text)); }

  void set_effort(const std::string& argument) {
    if (argument == "off") {
      request_.is_thinking = false;
    } else if (!argument.empty()) {
      request_.effort = parse_effort(argument);
      request_.is_thinking = true;
    }
    say(request_.is_thinking ? fmt::format("effort {}\n", request_.effort) : "no thinking\n");
  }

  [[nodiscard]] bool has_system() const {
    return !request_.messages.empty() && request_.messages.front().role == ChatRole::kSystem;
  }

  void set_system(const std::string& argument) {
    if (argument.empty()) {
      say(has_system() ? request_.messages.front().content.front().text + "\n" : "no system message\n");
      return;
    }
    if (has_system()) request_.messages.erase(request_.messages.begin());
    request_.messages.insert(request_.messages.begin(), make_message(ChatRole::kSystem, argument));
    say("system message set\n");
  }

  void add_image(const std::string& file) {
    if (file.empty()) throw Error(ErrorCode::kInvalidArgument, "/image needs the name of a file");
    const std::string bytes = read_file(file, ImageLimits{}.bytes_max);
    const ImagePlan plan = load_image(model_, std::as_bytes(std::span(bytes)), file)->prepared.plan;
    images_.push_back(make_image_block(std::as_bytes(std::span(bytes))));
    say(fmt::format("{} x {} pixels as the model sees it, {} tokens; it goes with the next message\n",
                    plan.scaled_width, plan.scaled_height, plan.tokens()));
  }

  void save(const std::string& file) {
    if (file.empty()) throw Error(ErrorCode::kInvalidArgument, "/save needs the name of a file");
    write_file_atomically(file, write_json(transcript_json(request_)) + "\n");
    say(fmt::format("saved {} messages\n", request_.messages.size()));
  }

  void reset() {
    request_.messages.resize(has_system() ? 1 : 0);
    images_.clear();
    say("forgotten\n");
  }

  void answer(const std::string& text) {
    ChatMessage message = make_message(ChatRole::kUser, text);
    message.content.insert(message.content.begin(), std::make_move_iterator(images_.begin()),
                           std::make_move_iterator(images_.end()));
    images_.clear();
    request_.messages.push_back(std::move(message));
    try {
      const TurnResult result = run_turn();
      keep(result.completion);
    } catch (const Error&) {
      request_.messages.pop_back();  // a message without an answer would stand in the way of the next one
      throw;
    }
  }

  [[nodiscard]] TurnResult run_turn() {
    std::vector<std::string> missing;
    TurnRequest turn = make_chat_turn(model_, request_, missing);
    if (!std::exchange(has_noted_missing_, true)) note_missing_control_tokens(missing);
    apply_sampling_flags(flags_.sampling, model_.defaults(), turn.generation);
    apply_engine_flags(flags_.engine, turn.generation);
    turn.drafts = draft_options(flags_.engine, flags_.sampling.seed.has_value());
    turn.output.stops = flags_.sampling.stops;
    const AnswerScope scope(stopper_);
    AnswerPrinter printer(output_);
    TurnTimes times;
    TurnResult result = run_timed(
        conversation_, turn, [&](const CompletionEvent& event) { printer(event); }, scope.stop, times);
    output_.write("\n");
    if (output_.is_terminal()) output_.write(output_.dimmed(fmt::format("[{}]", turn_summary(result, times))) + "\n");
    return result;
  }

  /// An answer that was stopped stays as far as it got; one that never began takes its question along.
  void keep(const Completion& completion) {
    if (completion.content.empty() && completion.reasoning.empty()) {
      request_.messages.pop_back();
      return;
    }
    ChatMessage message = make_message(ChatRole::kAssistant, completion.content);
    message.reasoning = completion.reasoning;
    request_.messages.push_back(std::move(message));
  }

  /// While it lives, Ctrl-C stops the answer.
  struct AnswerScope {
    explicit AnswerScope(Stopper& stopper_in) : stopper(stopper_in), stop(stopper_in.begin_answer()) {}
    ~AnswerScope() { stopper.end_answer(); }
    AnswerScope(const AnswerScope&) = delete;
    AnswerScope& operator=(const AnswerScope&) = delete;
    Stopper& stopper;
    std::stop_token stop;
  };

  const LoadedModel& model_;
  const ChatCommandFlags& flags_;
  Stopper& stopper_;
  Conversation conversation_;
  ChatRequest request_;
  std::vector<ContentBlock> images_;  ///< for the next message
  LineEditor editor_;
  Output output_{Output::kStandardOutput};
  Output error_{Output::kStandardError};
  bool has_noted_missing_ = false;
};

int chat(const ChatCommandFlags& flags) {
  Stopper stopper;
  const Interrupts interrupts([&] { stopper.on_interrupt(); });
  const std::unique_ptr<LoadedModel> model = load_model(flags.engine);
  (void)model->tokenizer();  // says what is missing before the first question is typed
  const std::unique_ptr<KvCache> cache = open_cache(flags.cache, *model);
  Chat(*model, *cache, flags, stopper).run();
  return kExitOk;
}

}  // namespace

void add_chat_command(CLI::App& program, Invocation& invocation) {
  CLI::App* command = program.add_subcommand("chat", "a conversation in the terminal");
  const auto flags = std::make_shared<ChatCommandFlags>();
  add_engine_flags(*command, flags->engine);
  add_draft_flag(*command, flags->engine);
  add_cache_flags(*command, flags->cache);
  add_chat_flags(*command, flags->chat);
  add_sampling_flags(*command, flags->sampling);
  command->footer(kChatExamples);
  command->callback([flags, &invocation] { invocation.body = [flags] { return chat(*flags); }; });
}

}  // namespace tidepool
