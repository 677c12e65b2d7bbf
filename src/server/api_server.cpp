#include "server/api_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "server/access.h"
#include "server/anthropic_messages.h"
#include "server/api_error.h"
#include "server/chat_completions.h"
#include "server/completions.h"
#include "server/engine_watch.h"
#include "server/generation.h"
#include "server/id_source.h"
#include "server/json_writer.h"
#include "server/metrics.h"
#include "server/responses.h"
#include "server/token_routes.h"
#include "server/web_assets.h"
#include "text/dsml.h"
#include "text/unicode.h"

namespace tidepool {
namespace {

using ExchangePtr = std::shared_ptr<HttpExchange>;

/// Nothing but the page's own files; pictures that were dropped on it are data of its own.
constexpr std::string_view kPagePolicy =
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A version to come may be longer than the 55 of today.
constexpr size_t kTraceBytesMax = 256;

constexpr std::string_view kAllowedHeaders =
    "authorization, content-type, x-api-key, x-request-id, traceparent, anthropic-version, anthropic-beta, "
    "anthropic-dangerous-direct-browser-access, x-stainless-arch, x-stainless-lang, x-stainless-os, "
    "x-stainless-package-version, x-stainless-runtime, x-stainless-runtime-version, x-stainless-retry-count, "
    "x-stainless-timeout";

bool has_prefix_folder(std::string_view path, std::string_view folder) {
  return path.starts_with(folder) && path.size() > folder.size() && path[folder.size()] == '/';
}

/// The path of an API's route without what different clients put in front: "/v1/chat/completions",
/// "/beta/chat/completions" and "/chat/completions" are one.
std::string_view route_path(std::string_view path) {
  for (const std::string_view folder : {"/anthropic", "/beta", "/v1"}) {
    if (has_prefix_folder(path, folder)) path.remove_prefix(folder.size());
  }
  if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  return path;
}

/// What a client sent, fit for a line of JSON.
std::string logged(std::string_view text) {
  return replace_invalid_utf8(printable(text));
}

}  // namespace

struct ApiServer::Impl {
  explicit Impl(ApiServerOptions given)
      : options(std::move(given)),
        access(options.http.host, options.api_key, options.allowed_origins),
        metrics(options.model_names.front()),
        watch(options.stuck_limit),
        created(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                    .count()) {}

  using Handle = void (Impl::*)(const ExchangePtr& exchange);
  using ReadCall = ApiCall (*)(const Json& body, const ApiContext& context);
  struct Route {
    std::string_view path;
    std::string_view method;
    bool is_open = false;  ///< a probe: needs no key, by whatever name it asks
    Handle handle = nullptr;
    ReadCall read_call = nullptr;  ///< of a dialect; or `handle`
  };
  static const std::array<Route, 18>& routes();

  void handle(const ExchangePtr& exchange);
  void dispatch(const ExchangePtr& exchange);
  [[nodiscard]] const Route& find_route(const HttpRequest& request) const;
  [[nodiscard]] std::optional<HttpAnswer> check_head(const HttpRequest& request) const;
  [[nodiscard]] std::vector<HttpHeader> common_headers(const HttpRequest& request) const;
  void answer(const ExchangePtr& exchange, HttpAnswer answer) const;
  [[nodiscard]] HttpAnswer refusal_answer(const HttpRequest& request, const ApiError& error) const;
  void refuse(const ExchangePtr& exchange, const ApiError& error) const;
  void observe(const HttpRequest& request, const HttpOutcome& outcome);

  [[nodiscard]] bool is_stuck(const ServiceStatus& status);
  Service& ready_service() const;
  [[nodiscard]] std::string checked_model(const Json& body, ErrorDialect dialect) const;
  void generate(const ExchangePtr& exchange, ReadCall read_call);
  void in_background(const ExchangePtr& exchange, std::function<void()> work);
  [[nodiscard]] ApiContext make_context(Service& serving, std::string model, std::string request_id);

  void health(const ExchangePtr& exchange);
  void ping(const ExchangePtr& exchange);
  void show_version(const ExchangePtr& exchange);
  void load(const ExchangePtr& exchange);
  void show_metrics(const ExchangePtr& exchange);
  void list_models(const ExchangePtr& exchange);
  void show_model(const ExchangePtr& exchange);
  void stored_response(const ExchangePtr& exchange);
  void tokenize(const ExchangePtr& exchange);
  void detokenize(const ExchangePtr& exchange);
  void count_tokens(const ExchangePtr& exchange);
  [[nodiscard]] bool try_asset(const ExchangePtr& exchange) const;

  ApiServerOptions options;
  AccessRules access;
  Metrics metrics;
  EngineWatch watch;
  IdSource ids;
  int64_t created;
  uint64_t weight_bytes = 0;               ///< set before `service`
  std::atomic<Service*> service{nullptr};  ///< set once, with release; what it points to was made before
  std::atomic<bool> is_draining{false};
  mutable std::mutex progress_mutex;  ///< guards the three below
  std::string loading_part;
  size_t loading_done = 0;
  size_t loading_total = 0;
  std::unique_ptr<HttpServer> http;  ///< last: its threads use all above
};

namespace {

ErrorDialect dialect_of(const HttpRequest& request) {
  const std::string_view path = route_path(request.path);
  const bool is_anthropic = path == "/messages" || path.starts_with("/messages/") ||
                            (path.starts_with("/models") && request.find_header("anthropic-version") != nullptr);
  return is_anthropic ? ErrorDialect::kAnthropic : ErrorDialect::kOpenAi;
}

/// 413 for a body that may become large, where none belongs.
void check_small(const HttpRequest& request, size_t bytes_max) {
  const std::string* length = request.find_header("content-length");
  size_t bytes = 0;
  if (length != nullptr) std::from_chars(length->data(), length->data() + length->size(), bytes);
  if (bytes <= bytes_max && request.find_header("transfer-encoding") == nullptr) return;
  throw ApiRefusal(make_error(413, "nothing here takes a body of that size"));
}

/// A file of the page; null pointer when the path is none.
const WebAsset* find_asset(const HttpRequest& request) {
  if (request.method != "GET" && request.method != "HEAD") return nullptr;
  const std::string_view path = request.path == "/" ? "/index.html" : std::string_view(request.path);
  for (const WebAsset& asset : web_assets()) {
    if (asset.path == path) return &asset;
  }
  return nullptr;
}

}  // namespace

const std::array<ApiServer::Impl::Route, 18>& ApiServer::Impl::routes() {
  static const std::array<Route, 18> table = {{
      {"/chat/completions", "POST", false, nullptr, &chat::read_call},
      {"/completions", "POST", false, nullptr, &completions::read_call},
      {"/responses", "POST", false, nullptr, &responses::read_call},
      {"/responses/*", "GET", false, &Impl::stored_response, nullptr},
      {"/responses/*", "DELETE", false, &Impl::stored_response, nullptr},
      {"/messages", "POST", false, nullptr, &messages::read_call},
      {"/messages/count_tokens", "POST", false, &Impl::count_tokens, nullptr},
      {"/models", "GET", false, &Impl::list_models, nullptr},
      {"/models/*", "GET", false, &Impl::show_model, nullptr},
      {"/tokenize", "POST", false, &Impl::tokenize, nullptr},
      {"/detokenize", "POST", false, &Impl::detokenize, nullptr},
      {"/health", "GET", true, &Impl::health, nullptr},
      {"/health", "HEAD", true, &Impl::health, nullptr},
      {"/ping", "GET", true, &Impl::ping, nullptr},
      {"/ping", "POST", true, &Impl::ping, nullptr},
      {"/metrics", "GET", true, &Impl::show_metrics, nullptr},
      {"/version", "GET", false, &Impl::show_version, nullptr},
      {"/load", "GET", false, &Impl::load, nullptr},
  }};
  return table;
}

// --- the way of a request -------------------------------------------------------------------------------------------

void ApiServer::Impl::handle(const ExchangePtr& exchange) {
  try {
    dispatch(exchange);
  } catch (const ApiRefusal& refused) {
    refuse(exchange, refused.error());
  } catch (const Error& error) {
    refuse(exchange, refused_error(error));
  }
}

void ApiServer::Impl::dispatch(const ExchangePtr& exchange) {
  const HttpRequest& request = exchange->request();
  if (request.method == "OPTIONS") {
    HttpAnswer preflight;
    preflight.status = 204;
    preflight.content_type = "";
    return answer(exchange, std::move(preflight));
  }
  if (try_asset(exchange)) return;
  const Route& route = find_route(request);
  if (route.read_call != nullptr) return generate(exchange, route.read_call);
  (this->*route.handle)(exchange);
}

/// Before a body is read: nobody without the key takes memory.
std::optional<HttpAnswer> ApiServer::Impl::check_head(const HttpRequest& request) const {
  try {
    const bool is_page = request.method == "OPTIONS" || find_asset(request) != nullptr;
    const bool is_open = is_page || find_route(request).is_open;
    if (is_open) {
      check_small(request, options.http.small_body_bytes);
    } else {
      access.check_key(request);
      access.check_host(request);
    }
    if (!is_page) access.check_origin(request);
    return std::nullopt;
  } catch (const ApiRefusal& refused) {
    return refusal_answer(request, refused.error());
  }
}

const ApiServer::Impl::Route& ApiServer::Impl::find_route(const HttpRequest& request) const {
  const std::string_view path = route_path(request.path);
  bool is_known_path = false;
  for (const Route& route : routes()) {
    const std::string_view head = route.path.substr(0, route.path.size() - 1);
    const bool is_match =
        route.path.ends_with('*') ? path.starts_with(head) && path.size() > head.size() : path == route.path;
    if (!is_match) continue;
    if (route.method == request.method) return route;
    is_known_path = true;
  }
  if (is_known_path)
    throw ApiRefusal(make_error(405, fmt::format("{} is not possible here", printable(request.method, 20))));
  throw ApiRefusal(make_error(404, fmt::format("there is nothing at {}", printable(request.path))));
}

std::vector<HttpHeader> ApiServer::Impl::common_headers(const HttpRequest& request) const {
  std::vector<HttpHeader> headers;
  if (dialect_of(request) == ErrorDialect::kAnthropic) headers.push_back({"request-id", request.id});
  // Who sends a trace's id finds it on the answer, whatever stands between.
  const std::string* trace = request.find_header("traceparent");
  if (trace != nullptr && trace->size() <= kTraceBytesMax) headers.push_back({"traceparent", *trace});
  const Service* serving = service.load(std::memory_order_acquire);
  if (serving != nullptr && !serving->script_name().empty()) {
    const std::string name = serving->script_name();  // whose folders are nobody's business
    headers.push_back({"x-tidepool-script", name.substr(name.rfind('/') + 1)});
  }
  const std::string* origin = request.find_header("origin");
  if (origin == nullptr || !access.has_allowed_origins()) return headers;
  headers.push_back({"Vary", "Origin"});
  if (!access.is_allowed_origin(*origin)) return headers;
  headers.push_back({"Access-Control-Allow-Origin", *origin});
  headers.push_back({"Access-Control-Expose-Headers", "x-request-id, request-id, retry-after, traceparent"});
  if (request.method == "OPTIONS") {
    headers.push_back({"Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"});
    headers.push_back({"Access-Control-Allow-Headers", std::string(kAllowedHeaders)});
    headers.push_back({"Access-Control-Max-Age", "600"});
  }
  return headers;
}

void ApiServer::Impl::answer(const ExchangePtr& exchange, HttpAnswer answer) const {
  const std::vector<HttpHeader> headers = common_headers(exchange->request());
  answer.headers.insert(answer.headers.end(), headers.begin(), headers.end());
  exchange->respond(std::move(answer));
}

HttpAnswer ApiServer::Impl::refusal_answer(const HttpRequest& request, const ApiError& error) const {
  HttpAnswer refused = error_answer(error, dialect_of(request), request.id);
  const std::vector<HttpHeader> headers = common_headers(request);
  refused.headers.insert(refused.headers.end(), headers.begin(), headers.end());
  return refused;
}

void ApiServer::Impl::refuse(const ExchangePtr& exchange, const ApiError& error) const {
  exchange->respond(refusal_answer(exchange->request(), error));
}

void ApiServer::Impl::observe(const HttpRequest& request, const HttpOutcome& outcome) {
  std::string_view handler = "other";  // whatever clients make up must not become a series each
  const std::string_view path = route_path(request.path);
  for (const Route& route : routes()) {
    if (path == route.path) handler = route.path;
  }
  const bool is_usual = request.method == "GET" || request.method == "POST" || request.method == "HEAD";
  metrics.count_http(handler, is_usual ? request.method : "other", outcome.status, outcome.duration);
  if (!options.access_log) return;
  std::string line;
  JsonWriter json(line);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  json.begin_object().key("time").number(
      static_cast<double>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()) / 1000);
  json.field("request_id", logged(request.id));
  if (const std::string* trace = request.find_header("traceparent")) json.field("traceparent", logged(*trace));
  json.field("peer", request.peer).field("method", logged(request.method)).field("path", logged(request.path));
  json.field("status", outcome.status).field("bytes", static_cast<int64_t>(outcome.bytes_sent));
  json.key("seconds").number(std::chrono::duration<double>(outcome.duration).count());
  json.field("complete", outcome.is_complete);
  if (!outcome.note.empty()) json.key("generation").raw(outcome.note);
  json.end_object();
  line += '\n';
  options.access_log(line);
}

// --- generating -----------------------------------------------------------------------------------------------------

Service& ApiServer::Impl::ready_service() const {
  Service* serving = service.load(std::memory_order_acquire);
  if (serving == nullptr) throw ApiRefusal(busy_error({Busy::Reason::kLoading, 5}));
  if (is_draining) throw ApiRefusal(busy_error({Busy::Reason::kDraining, 5}));
  return *serving;
}

/// The model's name as the client wrote it.
std::string ApiServer::Impl::checked_model(const Json& body, ErrorDialect dialect) const {
  const std::string& model = JsonFields(body).required_string("model");
  if (std::ranges::find(options.model_names, model) != options.model_names.end()) return model;
  // Clients made for Anthropic's models ask for them by name in places that cannot be configured.
  if (dialect == ErrorDialect::kAnthropic && model.starts_with("claude")) return model;
  ApiError error = make_error(404,
                              fmt::format("there is no model \"{}\" here; this one is called \"{}\"", printable(model),
                                          options.model_names.front()),
                              "model_not_found");
  error.param = "model";
  throw ApiRefusal(std::move(error));
}

ApiContext ApiServer::Impl::make_context(Service& serving, std::string model, std::string request_id) {
  ApiContext context;
  context.sampling = serving.model().defaults().sampling();
  context.seed = ids.seed();
  context.info.id = ids.id();
  context.info.model = std::move(model);
  context.info.created =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  context.info.request_id = std::move(request_id);
  context.info.fingerprint = "tidepool-" + options.version + (serving.script_name().empty() ? "" : "+script");
  context.info.decode = [&serving](std::span<const int32_t> tokens) { return serving.detokenize(tokens); };
  if (serving.model().has_tokenizer()) {
    context.info.think_end = serving.model().tokenizer().find_added_token(dsml::kThinkEnd);
  }
  return context;
}

/// Long bodies take their time: not on the thread of the connection and its neighbours.
void ApiServer::Impl::in_background(const ExchangePtr& exchange, std::function<void()> work) {
  exchange->background([this, exchange, run = std::move(work)] {
    try {
      run();
    } catch (const ApiRefusal& refused) {
      refuse(exchange, refused.error());
    } catch (const ServiceBusy& busy) {
      ApiError error = busy_error(busy.busy());
      error.message = busy.what();
      refuse(exchange, error);
    } catch (const Error& error) {
      refuse(exchange, refused_error(error));
    }
  });
}

void ApiServer::Impl::generate(const ExchangePtr& exchange, ReadCall read_call) {
  Service& serving = ready_service();
  const auto arrival = std::chrono::steady_clock::now();
  in_background(exchange, [this, exchange, &serving, read_call, arrival] {
    const ErrorDialect dialect = dialect_of(exchange->request());
    ApiCall call;
    {
      const Json body = parse_request_json(exchange->request().body);
      exchange->release_body();
      call = read_call(body, make_context(serving, checked_model(body, dialect), exchange->request().id));
    }
    call.error_dialect = dialect;
    if (options.request_timeout) {
      for (ServiceRequest& request : call.requests)
        request.deadline = arrival + *options.request_timeout;
    }
    std::vector<HttpHeader> headers = common_headers(exchange->request());
    std::string request_id = exchange->request().id;
    Generation::run({exchange, serving, metrics, std::move(call), std::move(headers), std::move(request_id), arrival});
  });
}

// --- small routes ---------------------------------------------------------------------------------------------------

bool ApiServer::Impl::is_stuck(const ServiceStatus& status) {
  return watch.is_stuck(status.progress, options.now ? options.now() : std::chrono::steady_clock::now());
}

/// Ready: requests are taken.
void ApiServer::Impl::health(const ExchangePtr& exchange) {
  const Service* serving = service.load(std::memory_order_acquire);
  const ServiceStatus status = serving == nullptr ? ServiceStatus() : serving->status();
  const bool has_stuck = serving != nullptr && is_stuck(status);
  HttpAnswer result;
  if (serving != nullptr && !has_stuck && !is_draining && !status.is_draining) {
    result.content_type = "";
    return answer(exchange, std::move(result));
  }
  result.status = 503;
  result.headers.push_back({"Retry-After", "5"});
  JsonWriter json(result.body);
  json.begin_object().field("status", serving == nullptr ? "loading" : has_stuck ? "stuck" : "draining");
  if (serving == nullptr) {
    const std::lock_guard lock(progress_mutex);
    json.field("part", loading_part).field("done", loading_done).field("total", loading_total);
  }
  json.end_object();
  answer(exchange, std::move(result));
}

// Handlers are members of one type, that of the table of routes, whether they change anything or not.
// NOLINTBEGIN(readability-make-member-function-const)

/// Alive: loading, draining and long prompts are no reason to end the process, an engine that stands still is.
void ApiServer::Impl::ping(const ExchangePtr& exchange) {
  const Service* serving = service.load(std::memory_order_acquire);
  HttpAnswer result;
  result.content_type = "";
  if (serving != nullptr && is_stuck(serving->status())) result.status = 503;
  answer(exchange, std::move(result));
}

void ApiServer::Impl::show_version(const ExchangePtr& exchange) {
  HttpAnswer result;
  JsonWriter(result.body).begin_object().field("version", options.version).end_object();
  answer(exchange, std::move(result));
}

void ApiServer::Impl::load(const ExchangePtr& exchange) {
  const Service* serving = service.load(std::memory_order_acquire);
  const ServiceStatus status = serving == nullptr ? ServiceStatus() : serving->status();
  HttpAnswer result;
  JsonWriter(result.body).begin_object().field("server_load", status.running + status.waiting).end_object();
  answer(exchange, std::move(result));
}

void ApiServer::Impl::show_metrics(const ExchangePtr& exchange) {
  const Service* serving = service.load(std::memory_order_acquire);
  Metrics::Gauges gauges;
  if (serving != nullptr) {
    gauges.service = serving->status();
    gauges.weight_bytes = weight_bytes;
    gauges.kv_bytes_per_token = static_cast<double>(serving->model().model().kv_layout()->block_bytes) / kBlockTokens;
  }
  gauges.io_cpu_seconds = http->io_cpu_seconds();
  gauges.open_connections = http->open_connections();
  gauges.is_ready = serving != nullptr && !is_draining && !gauges.service.is_draining && !is_stuck(gauges.service);
  HttpAnswer result;
  result.content_type = "text/plain; version=0.0.4; charset=utf-8";
  result.body = metrics.write(gauges);
  answer(exchange, std::move(result));
}

void ApiServer::Impl::list_models(const ExchangePtr& exchange) {
  const Service* serving = service.load(std::memory_order_acquire);
  HttpAnswer result;
  const ModelList list{options.model_names, created, serving == nullptr ? 0 : serving->max_model_len()};
  result.body = models_body(list);
  answer(exchange, std::move(result));
}

void ApiServer::Impl::show_model(const ExchangePtr& exchange) {
  const std::string_view id = route_path(exchange->request().path).substr(std::string_view("/models/").size());
  if (std::ranges::find(options.model_names, id) == options.model_names.end()) {
    throw ApiRefusal(make_error(404, fmt::format("there is no model \"{}\" here", printable(id)), "model_not_found"));
  }
  const Service* serving = service.load(std::memory_order_acquire);
  HttpAnswer result;
  result.body = model_body(id, created, serving == nullptr ? 0 : serving->max_model_len());
  answer(exchange, std::move(result));
}

void ApiServer::Impl::stored_response(const ExchangePtr& exchange) {
  refuse(exchange, make_error(404, "responses are not stored here: send the whole conversation each time"));
}

// NOLINTEND(readability-make-member-function-const)

void ApiServer::Impl::tokenize(const ExchangePtr& exchange) {
  Service& serving = ready_service();
  in_background(exchange, [this, exchange, &serving] {
    HttpAnswer result;
    result.body = tokenize_body(parse_request_json(exchange->request().body), serving);
    answer(exchange, std::move(result));
  });
}

void ApiServer::Impl::detokenize(const ExchangePtr& exchange) {
  Service& serving = ready_service();
  in_background(exchange, [this, exchange, &serving] {
    HttpAnswer result;
    result.body = detokenize_body(parse_request_json(exchange->request().body), serving);
    answer(exchange, std::move(result));
  });
}

void ApiServer::Impl::count_tokens(const ExchangePtr& exchange) {
  Service& serving = ready_service();
  in_background(exchange, [this, exchange, &serving] {
    const Json body = parse_request_json(exchange->request().body);
    (void)checked_model(body, ErrorDialect::kAnthropic);
    HttpAnswer result;
    const std::vector<int32_t> prompt = serving.encode(messages::read_count_request(body));
    JsonWriter(result.body).begin_object().field("input_tokens", prompt.size()).end_object();
    answer(exchange, std::move(result));
  });
}

bool ApiServer::Impl::try_asset(const ExchangePtr& exchange) const {
  const WebAsset* asset = find_asset(exchange->request());
  if (asset == nullptr) return false;
  HttpAnswer page;
  page.content_type = asset->content_type;
  page.body = asset->bytes;
  page.headers = {{"Content-Security-Policy", std::string(kPagePolicy)},
                  {"X-Content-Type-Options", "nosniff"},
                  {"Cache-Control", "no-cache"}};
  answer(exchange, std::move(page));
  return true;
}

// --- ApiServer ------------------------------------------------------------------------------------------------------

ApiServer::ApiServer(ApiServerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {
  Impl& impl = *impl_;
  impl.http = std::make_unique<HttpServer>(
      impl.options.http, [&impl](const ExchangePtr& exchange) { impl.handle(exchange); },
      [&impl](const HttpRequest& request, const HttpOutcome& outcome) { impl.observe(request, outcome); },
      [&impl](const HttpRequest& request) { return impl.check_head(request); });
}

ApiServer::~ApiServer() {
  stop(std::chrono::milliseconds(0));
}

void ApiServer::set_progress(std::string_view part, size_t done, size_t total) {
  const std::lock_guard lock(impl_->progress_mutex);
  impl_->loading_part = part;
  impl_->loading_done = done;
  impl_->loading_total = total;
}

void ApiServer::set_service(Service& service) {
  for (const Checkpoint::TensorInfo& tensor : service.model().checkpoint().tensors())
    impl_->weight_bytes += tensor.bytes;
  impl_->service.store(&service, std::memory_order_release);
}

void ApiServer::stop(std::chrono::milliseconds grace) {
  impl_->is_draining = true;
  if (Service* serving = impl_->service.load(std::memory_order_acquire)) serving->drain();
  impl_->http->stop(grace);
}

void ApiServer::hurry() {
  impl_->http->hurry();
}

const HttpServer& ApiServer::http() const {
  return *impl_->http;
}

}  // namespace tidepool
