#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "apps/cache_flags.h"
#include "apps/command.h"
#include "apps/engine_flags.h"
#include "apps/line_file.h"
#include "apps/output.h"
#include "base/error.h"
#include "base/log.h"
#include "server/api_server.h"
#include "server/json_writer.h"
#include "session/engine_service.h"
#include "session/image_fetch.h"

namespace tidepool {
namespace {

constexpr const char* kServeExamples =
    "Examples:\n"
    "  tidepool serve MODEL                                  answers this machine at http://127.0.0.1:8000\n"
    "  tidepool serve MODEL --port 9000 --kv-ram 64GiB\n"
    "  tidepool serve MODEL --host 0.0.0.0 --api-key SECRET  answers the network, but only those who know the key\n"
    "\n"
    "Then, for example:\n"
    "  curl http://127.0.0.1:8000/v1/chat/completions -d '{\"model\": \"NAME\",\n"
    "    \"messages\": [{\"role\": \"user\", \"content\": \"Why is the sky blue?\"}]}'\n"
    "\n"
    "A page to chat with is at http://127.0.0.1:8000/. Programs made for OpenAI's API get the base URL\n"
    "http://127.0.0.1:8000/v1, those made for Anthropic's http://127.0.0.1:8000; any key does when none is set.\n"
    "docs/api.md lists what is served. Ctrl-C or SIGTERM lets answers under way end, a second one does not.";

struct ServeFlags {
  EngineFlags engine;
  CacheFlags cache;
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  std::string api_key;
  std::vector<std::string> model_names;
  std::vector<std::string> allowed_origins;
  std::vector<std::string> media_domains;
  size_t max_num_seqs = 16;
  double max_prefill_share = 0.5;
  size_t queue_limit = 256;
  std::optional<double> request_timeout;
  double shutdown_timeout = 30;
  int64_t repetition_limit = EngineServiceOptions().repetition_limit;
  std::string access_log;
  std::string script;
};

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

/// The signals that end the server, and the one by which its own threads wake the main thread. Blocked, so that they
/// are waited for instead; threads started later inherit that.
class Signals {
 public:
  static constexpr int kWake = SIGUSR1;

  Signals() {
    ::sigemptyset(&set_);
    for (const int signal : {SIGINT, SIGTERM, kWake})
      ::sigaddset(&set_, signal);
    ::pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~Signals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  [[nodiscard]] int wait() const {
    int signal = 0;
    while (::sigwait(&set_, &signal) != 0) {
    }
    return signal;
  }
  static void wake() { ::kill(::getpid(), kWake); }
  /// As the signal ends a process that does not wait for it.
  static void end_by(int signal) {
    ::signal(signal, SIG_DFL);
    sigset_t only{};
    ::sigemptyset(&only);
    ::sigaddset(&only, signal);
    ::raise(signal);
    ::pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  }

 private:
  sigset_t set_{};
  sigset_t before_{};
};

/// A descriptor per client: as many as the system lets this process have.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) log_warning("the limit on open files could not be raised");
}

std::vector<std::string> served_names(const ServeFlags& flags) {
  if (!flags.model_names.empty()) return flags.model_names;
  std::filesystem::path folder = std::filesystem::absolute(flags.engine.model).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  return {folder.filename().string()};
}

ApiServerOptions server_options(const ServeFlags& flags) {
  ApiServerOptions options;
  options.http.host = flags.host;
  options.http.port = flags.port;
  options.model_names = served_names(flags);
  options.version = TIDEPOOL_VERSION;
  options.api_key = flags.api_key;
  options.allowed_origins = flags.allowed_origins;
  // Whoever waits for a link must not keep others from having their requests read.
  if (!flags.media_domains.empty()) options.http.background_threads += ImageFetchOptions().at_once_max;
  if (flags.request_timeout) options.request_timeout = milliseconds_of(*flags.request_timeout);
  if (!flags.access_log.empty()) {
    const auto log = std::make_shared<LineFile>(flags.access_log);
    options.access_log = [log](std::string_view line) { log->write(line); };
  }
  return options;
}

EngineServiceOptions service_options(const ServeFlags& flags, const LoadedModel& model) {
  EngineServiceOptions options;
  options.scheduler.max_num_seqs = flags.max_num_seqs;
  options.scheduler.drafts = draft_options(flags.engine, false);
  const size_t step_rows = 1 + drafts_max(options.scheduler.drafts, model.config());
  options.scheduler.max_num_batched_tokens = std::max(flags.engine.chunk, flags.max_num_seqs * step_rows + 1);
  options.scheduler.max_prefill_share = flags.max_prefill_share;
  options.scheduler.max_model_len = flags.engine.max_model_len.value_or(0);
  options.scheduler.queue_limit = flags.queue_limit;
  options.scheduler.replay = parse_replay(flags.engine.replay);
  options.kv = cache_options(flags.cache, model);
  options.repetition_limit = flags.repetition_limit;
  options.media_hosts = flags.media_domains;
  options.script = flags.script;
  return options;
}

void announce(const ApiServer& server, const ServeFlags& flags) {
  const std::string url = server.http().url();
  const std::string name = served_names(flags).front();
  std::string body;
  JsonWriter json(body);
  json.begin_object().field("model", name).key("messages").begin_array().begin_object();
  json.field("role", "user").field("content", "Hello").end_object().end_array().end_object();
  const std::string key = flags.api_key.empty() ? "" : " -H 'Authorization: Bearer KEY'";
  Output(Output::kStandardOutput)
      .write(fmt::format("Tidepool serves {} at {}\n  curl {}/v1/chat/completions{} -d '{}'\n", name, url, url, key,
                         body));
  if (!flags.script.empty()) log_warning("outputs are replayed from {}; the model chooses nothing", flags.script);
  const bool is_local = flags.host == "localhost" || flags.host == "::1" || flags.host.starts_with("127.");
  if (!is_local && flags.api_key.empty()) {
    log_warning("everybody who reaches {} can use this server; --api-key asks them for a key", flags.host);
  }
}

/// What is served, in the order in which it comes to be.
struct Serving {
  std::shared_ptr<const LoadedModel> model;
  std::unique_ptr<Service> service;
};

void load(const ServeFlags& flags, ApiServer& server, Serving& serving, const std::stop_token& stop) {
  const auto progress = [&](std::string_view part, size_t done, size_t total) {
    server.set_progress(part, done, total);
    if (stop.stop_requested()) throw Error(ErrorCode::kCancelled, "the server was stopped while it was loading");
  };
  serving.model = load_model(flags.engine, progress);
  (void)serving.model->tokenizer();  // says what is missing now rather than at the first request
  serving.service = make_engine_service(serving.model, service_options(flags, *serving.model));
  server.set_service(*serving.service);
  announce(server, flags);
}

/// Lets answers end, unless a second signal comes.
void stop(ApiServer& server, const Signals& signals, double grace) {
  log_info("stopping: answers under way have {} s to end", grace);
  std::jthread stopper([&server, grace] {
    server.stop(milliseconds_of(grace));
    Signals::wake();
  });
  while (signals.wait() != Signals::kWake)
    server.hurry();
}

int serve(const ServeFlags& flags) {
  set_log_level(LogLevel::kInfo);
  const Signals signals;
  raise_descriptor_limit();
  Serving serving;
  ApiServer server(server_options(flags));
  std::stop_source stop_loading;
  std::future<void> loading = std::async(std::launch::async, [&] {
    struct Waker {
      Waker() = default;
      Waker(const Waker&) = delete;
      Waker& operator=(const Waker&) = delete;
      ~Waker() { Signals::wake(); }
    } const waker;
    load(flags, server, serving, stop_loading.get_token());
  });
  int signal = signals.wait();
  if (signal == Signals::kWake) {
    loading.get();  // throws what went wrong
    while (signal == Signals::kWake)
      signal = signals.wait();
    stop(server, signals, flags.shutdown_timeout);
    return kExitOk;
  }
  log_info("stopping: loading ends at the next tensor; a second signal ends the server at once");
  stop_loading.request_stop();
  while ((signal = signals.wait()) != Signals::kWake)
    if (loading.wait_for(std::chrono::seconds(0)) != std::future_status::ready) Signals::end_by(signal);
  loading.wait();
  server.stop(std::chrono::milliseconds(0));
  return kExitOk;
}

void add_server_flags(CLI::App& command, ServeFlags& flags) {
  const char* group = "Server";
  const auto add = [&](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->group(group);
  };
  add("--host", flags.host, "address to listen at: 127.0.0.1 is this machine only, 0.0.0.0 every network")
      ->capture_default_str();
  add("--port", flags.port, "port to listen at; 0 takes a free one and says which")->capture_default_str();
  add("--api-key", flags.api_key, "a secret that requests must send; also from the environment, which is safer")
      ->envname("TIDEPOOL_API_KEY");
  add("--served-model-name", flags.model_names,
      "names that requests may call the model by; default: the name of its folder")
      ->delimiter(',');
  add("--allowed-origins", flags.allowed_origins,
      "origins of web pages elsewhere that may ask, as \"https://example.com\"; * is all")
      ->delimiter(',');
  add("--allowed-media-domains", flags.media_domains,
      "hosts from which pictures are fetched when a request has their links; default: none")
      ->delimiter(',');
  add("--request-timeout", flags.request_timeout, "seconds after which a request is given up; default: never")
      ->check(CLI::PositiveNumber);
  add("--shutdown-timeout", flags.shutdown_timeout, "seconds that answers get to end when the server is stopped")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  add("--access-log", flags.access_log,
      "file that gets a line of JSON per request, without its text; - is standard error");
  add("--script", flags.script, "for tests: replay the outputs of this file instead of sampling");
}

void add_batching_flags(CLI::App& command, ServeFlags& flags) {
  const char* group = "Batching";
  command.add_option("--max-num-seqs", flags.max_num_seqs, "answers that are written at once; others wait")
      ->check(CLI::Range(size_t{1}, size_t{4096}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--max-prefill-share", flags.max_prefill_share,
                  "share of the time that reading prompts may take from answers under way")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->group(group);
  command.add_option("--queue-limit", flags.queue_limit, "requests that may wait; more are refused with status 429")
      ->check(CLI::Range(size_t{0}, size_t{1'000'000}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--repetition-limit", flags.repetition_limit,
                  "tokens of nothing but the same over and over that end an answer, as max_tokens does; 0: never")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(group);
}

}  // namespace

void add_serve_command(CLI::App& program, Invocation& invocation) {
  CLI::App* command = program.add_subcommand(
      "serve", "a server for programs and agents (OpenAI's and Anthropic's APIs), with a page to chat");
  const auto flags = std::make_shared<ServeFlags>();
  add_engine_flags(*command, flags->engine);
  add_draft_flag(*command, flags->engine);
  add_server_flags(*command, *flags);
  add_batching_flags(*command, *flags);
  add_cache_flags(*command, flags->cache);
  command->footer(kServeExamples);
  command->callback([flags, &invocation] { invocation.body = [flags] { return serve(*flags); }; });
}

}  // namespace tidepool
