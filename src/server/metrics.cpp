#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "text/json.h"

namespace tidepool {
namespace {

using Seconds = std::chrono::duration<double>;

// Bounds as vLLM has them, where dashboards read them.
const std::vector<double>& first_token_bounds() {
  static const std::vector<double> bounds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                             1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
  return bounds;
}

const std::vector<double>& between_bounds() {
  static const std::vector<double> bounds = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                             0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
  return bounds;
}

const std::vector<double>& request_bounds() {
  static const std::vector<double> bounds = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                             30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
  return bounds;
}

/// 1, 2, 5, 10, 20, ... up to the context's length.
std::vector<double> token_bounds(int64_t context_max) {
  std::vector<double> bounds;
  for (int64_t power = 1; power <= context_max; power *= 10) {
    for (const int64_t digit : {1, 2, 5}) {
      if (digit * power <= context_max) bounds.push_back(static_cast<double>(digit * power));
    }
  }
  return bounds;
}

std::string label_value(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

void write_value(std::string& out, std::string_view name, std::string_view labels, double value) {
  out += fmt::format("{}{{{}}} {}\n", name, labels, value);
}

void write_head(std::string& out, std::string_view name, std::string_view type, std::string_view help) {
  out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

struct NamedHelp {
  std::string_view name;
  std::string_view help;
};

constexpr std::array<NamedHelp, 8> kSecondsHistograms = {{
    {"time_to_first_token_seconds", "From a request's arrival to its first token."},
    {"inter_token_latency_seconds", "Between tokens of one choice."},
    {"time_per_output_token_seconds", "Between tokens of one choice (older name)."},
    {"request_time_per_output_token_seconds", "Mean time of a request's tokens behind its first."},
    {"e2e_request_latency_seconds", "From a request's arrival to its end."},
    {"request_queue_time_seconds", "From a request's arrival to its prompt being read."},
    {"request_prefill_time_seconds", "From the prompt being read to the first token."},
    {"request_decode_time_seconds", "From the first token to the last."},
}};
constexpr NamedHelp kInferenceTime = {"request_inference_time_seconds",
                                      "From the prompt being read to the last token."};

constexpr std::array<NamedHelp, 6> kTokenHistograms = {{
    {"request_prompt_tokens", "Tokens of a request's prompt."},
    {"request_generation_tokens", "Tokens of a request's output."},
    {"request_max_num_generation_tokens", "The longest output of a request's choices."},
    {"request_params_max_tokens", "max_tokens of requests that give it."},
    {"request_params_n", "n of requests."},
    {"iteration_tokens_total", "Tokens that came at once for one choice."},
}};

}  // namespace

Histogram::Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

void Histogram::observe(double value, uint64_t times) {
  const auto bucket = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
  counts_[static_cast<size_t>(bucket)] += times;
  sum_ += value * static_cast<double>(times);
  count_ += times;
}

void Histogram::write(std::string& out, std::string_view name, std::string_view labels) const {
  uint64_t below = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    below += counts_[i];
    const std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    const std::string_view comma = labels.empty() ? "" : ",";
    out += fmt::format("{}_bucket{{{}{}le=\"{}\"}} {}\n", name, labels, comma, bound, below);
  }
  out += fmt::format("{}_sum{{{}}} {}\n{}_count{{{}}} {}\n", name, labels, sum_, name, labels, count_);
}

Metrics::Metrics(const std::string& model_name, int64_t context_max)
    : labels_(fmt::format("model_name=\"{}\",engine=\"0\"", label_value(model_name))),
      http_seconds_(first_token_bounds()) {
  for (const NamedHelp& histogram : kSecondsHistograms) {
    const bool is_first = histogram.name == "time_to_first_token_seconds";
    const bool is_between = histogram.name.find("token_latency") != std::string_view::npos ||
                            histogram.name.find("per_output_token") != std::string_view::npos;
    seconds_.emplace(histogram.name, Histogram(is_first     ? first_token_bounds()
                                               : is_between ? between_bounds()
                                                            : request_bounds()));
  }
  seconds_.emplace(kInferenceTime.name, Histogram(request_bounds()));
  for (const NamedHelp& histogram : kTokenHistograms)
    tokens_.emplace(histogram.name, Histogram(token_bounds(context_max)));
  // Dashboards want the series from the start.
  for (const std::string_view finish : {"stop", "length", "abort", "error"})
    finished_.emplace(finish, 0);
}

void Metrics::count_prompt(const CacheReport& cache) {
  const std::lock_guard lock(mutex_);
  prompt_tokens_ += static_cast<uint64_t>(cache.prompt_tokens);
  hit_tokens_ += static_cast<uint64_t>(cache.hit_tokens);
  hit_tokens_by_tier_[std::string(cache_tier_name(cache.tier))] += static_cast<uint64_t>(cache.hit_tokens);
}

void Metrics::count_tokens(int64_t tokens, std::optional<std::chrono::steady_clock::duration> gap) {
  const std::lock_guard lock(mutex_);
  generation_tokens_ += static_cast<uint64_t>(tokens);
  tokens_.find("iteration_tokens_total")->second.observe(static_cast<double>(tokens));
  if (!gap) return;
  const double seconds = Seconds(*gap).count() / static_cast<double>(tokens);
  seconds_.find("inter_token_latency_seconds")->second.observe(seconds, static_cast<uint64_t>(tokens));
  seconds_.find("time_per_output_token_seconds")->second.observe(seconds, static_cast<uint64_t>(tokens));
}

void Metrics::count_drafts(const DraftCounts& drafts) {
  const std::lock_guard lock(mutex_);
  drafts_.add(drafts);
}

void Metrics::count_request(const RequestOutcome& outcome) {
  const std::lock_guard lock(mutex_);
  ++finished_.find(outcome.finish)->second;
  const auto observe = [this](std::string_view name, std::chrono::steady_clock::duration time) {
    seconds_.find(name)->second.observe(Seconds(time).count());
  };
  const RequestTimes& times = outcome.times;
  observe("e2e_request_latency_seconds", outcome.end - times.arrival);
  if (times.start) observe("request_queue_time_seconds", *times.start - times.arrival);
  if (times.start && times.first_token) {
    observe("time_to_first_token_seconds", *times.first_token - times.arrival);
    observe("request_prefill_time_seconds", *times.first_token - *times.start);
    observe("request_decode_time_seconds", *times.last_token - *times.first_token);
    observe(kInferenceTime.name, *times.last_token - *times.start);
    if (outcome.generation_tokens > 1) {
      observe("request_time_per_output_token_seconds",
              (*times.last_token - *times.first_token) / (outcome.generation_tokens - 1));
    }
  }
  tokens_.find("request_prompt_tokens")->second.observe(static_cast<double>(outcome.prompt_tokens));
  tokens_.find("request_generation_tokens")->second.observe(static_cast<double>(outcome.generation_tokens));
  tokens_.find("request_max_num_generation_tokens")->second.observe(static_cast<double>(outcome.generation_tokens));
  tokens_.find("request_params_n")->second.observe(static_cast<double>(outcome.choices));
  if (outcome.max_tokens > 0) {
    tokens_.find("request_params_max_tokens")->second.observe(static_cast<double>(outcome.max_tokens));
  }
}

void Metrics::count_http(std::string_view handler, std::string_view method, int status,
                         std::chrono::steady_clock::duration duration) {
  const std::lock_guard lock(mutex_);
  ++http_requests_[{std::string(handler), std::string(method), status}];
  http_seconds_.observe(Seconds(duration).count());
}

void Metrics::write_gauges(std::string& out, const Gauges& gauges) const {
  const auto gauge = [&](std::string_view name, std::string_view help, double value) {
    write_head(out, name, "gauge", help);
    write_value(out, name, labels_, value);
  };
  gauge("vllm:num_requests_running", "Requests being read or answered.", static_cast<double>(gauges.service.running));
  gauge("vllm:num_requests_waiting", "Requests in the queue.", static_cast<double>(gauges.service.waiting));
  gauge("vllm:kv_cache_usage_perc", "Share of the KV memory in use, 0 to 1.", gauges.service.kv_used_share);
  gauge("vllm:gpu_cache_usage_perc", "The same under its older name.", gauges.service.kv_used_share);
  write_head(out, "vllm:cache_config_info", "gauge", "Settings of the cache, as labels.");
  write_value(out, "vllm:cache_config_info", labels_ + ",enable_prefix_caching=\"True\"", 1);
  gauge("tidepool:ready", "1 when requests are taken.", gauges.is_ready ? 1 : 0);
  gauge("tidepool:kv_bytes_per_token", "KV of one token, all layers.", gauges.kv_bytes_per_token);
  write_head(out, "tidepool:memory_bytes", "gauge", "Memory by part; weights are mapped files.");
  for (const auto& [part, bytes] :
       {std::pair("weights", gauges.weight_bytes), std::pair("kv_pages", gauges.service.kv_page_bytes),
        std::pair("kv_reserved", gauges.service.kv_reserved_bytes),
        std::pair("snapshots", gauges.service.snapshot_bytes)}) {
    write_value(out, "tidepool:memory_bytes", fmt::format("{},part=\"{}\"", labels_, part), static_cast<double>(bytes));
  }
  gauge("tidepool:open_connections", "Connections of clients.", static_cast<double>(gauges.open_connections));
}

void Metrics::write_counters(std::string& out) const {
  const auto counter = [&](std::string_view name, std::string_view help, uint64_t value) {
    write_head(out, name, "counter", help);
    write_value(out, name, labels_, static_cast<double>(value));
  };
  counter("vllm:prompt_tokens_total", "Tokens of prompts.", prompt_tokens_);
  counter("vllm:generation_tokens_total", "Tokens of outputs.", generation_tokens_);
  counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the cache.", prompt_tokens_);
  counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the cache.", hit_tokens_);
  counter("vllm:num_preemptions_total", "Requests put back into the queue: none, memory is reserved first.", 0);
  write_head(out, "vllm:request_success_total", "counter", "Choices that ended, by reason.");
  for (const auto& [finish, count] : finished_) {
    write_value(out, "vllm:request_success_total", fmt::format("{},finished_reason=\"{}\"", labels_, finish),
                static_cast<double>(count));
  }
  write_head(out, "tidepool:cache_hit_tokens_total", "counter", "Prompt tokens found, by where the slowest was.");
  for (const auto& [tier, count] : hit_tokens_by_tier_) {
    write_value(out, "tidepool:cache_hit_tokens_total", fmt::format("{},tier=\"{}\"", labels_, tier),
                static_cast<double>(count));
  }
}

/// How far ahead the draft head is right, which is what its speed comes from.
void Metrics::write_drafts(std::string& out) const {
  const auto counter = [&](std::string_view name, std::string_view help, int64_t value) {
    write_head(out, name, "counter", help);
    write_value(out, name, labels_, static_cast<double>(value));
  };
  const auto by_position = [&](std::string_view name, std::string_view help, const std::vector<int64_t>& counts) {
    write_head(out, name, "counter", help);
    for (size_t i = 0; i < counts.size(); ++i) {
      write_value(out, name, fmt::format("{},position=\"{}\"", labels_, i), static_cast<double>(counts[i]));
    }
  };
  const int64_t accepted = drafts_.accepted_total();
  counter("vllm:spec_decode_num_drafts_total", "Steps of a choice that verified drafts.", drafts_.rounds);
  counter("vllm:spec_decode_num_draft_tokens_total", "Drafted tokens that were verified.",
          accepted + drafts_.rejected_total());
  counter("vllm:spec_decode_num_accepted_tokens_total", "Drafted tokens that were taken.", accepted);
  by_position("vllm:spec_decode_num_accepted_tokens_per_pos_total",
              "Drafted tokens that were taken, by their place in the block, from 0.", drafts_.accepted);
  by_position("tidepool:spec_decode_num_draft_tokens_per_pos_total",
              "Drafted tokens that were verified, by their place in the block, from 0.", drafts_.proposed);
}

/// What becomes of KV that leaves RAM: an operator sees here that the disk refuses it.
void Metrics::write_cache(std::string& out, const ServiceStatus& status) const {
  const auto write = [&](std::string_view name, std::string_view type, std::string_view help, uint64_t value) {
    write_head(out, name, type, help);
    write_value(out, name, labels_, static_cast<double>(value));
  };
  write("tidepool:repeating_outputs_total", "counter", "Outputs that came to repeat themselves without end.",
        status.repeating_outputs);
  write("tidepool:kv_evicted_blocks_total", "counter", "Blocks that left RAM for want of room.", status.evicted_pages);
  if (!status.store) return;
  const BlockStore::Stats& store = *status.store;
  write("tidepool:store_bytes", "gauge", "Size of the cache's folder.", store.disk_bytes);
  write("tidepool:store_queued", "gauge", "Records that wait to be written.", store.queued);
  write_head(out, "tidepool:store_records", "gauge", "Records in the cache's folder, by kind.");
  for (const auto& [kind, count] : {std::pair("block", store.blocks), std::pair("snapshot", store.snapshots)}) {
    write_value(out, "tidepool:store_records", fmt::format("{},kind=\"{}\"", labels_, kind),
                static_cast<double>(count));
  }
  write("tidepool:store_written_bytes_total", "counter", "Bytes of records written.", store.written_bytes);
  write("tidepool:store_dropped_writes_total", "counter",
        "Records that were not written: the queue was full, or the disk refused.", store.dropped_writes);
  write("tidepool:store_bad_records_total", "counter", "Records whose checksum or version did not fit.",
        store.bad_records);
  write("tidepool:store_failing", "gauge", "1 when the disk refused the last write.", store.last_error.empty() ? 0 : 1);
}

void Metrics::write_histograms(std::string& out) const {
  const auto write = [&](const NamedHelp& histogram, const auto& table) {
    const std::string name = fmt::format("vllm:{}", histogram.name);
    write_head(out, name, "histogram", histogram.help);
    table.find(histogram.name)->second.write(out, name, labels_);
  };
  for (const NamedHelp& histogram : kSecondsHistograms)
    write(histogram, seconds_);
  write(kInferenceTime, seconds_);
  for (const NamedHelp& histogram : kTokenHistograms)
    write(histogram, tokens_);
}

void Metrics::write_http(std::string& out, const Gauges& gauges) const {
  write_head(out, "http_requests_total", "counter", "Requests by route, method and status; 0 is a client that left.");
  for (const auto& [key, count] : http_requests_) {
    write_value(out, "http_requests_total",
                fmt::format("handler=\"{}\",method=\"{}\",status=\"{}\"", label_value(key.handler),
                            label_value(key.method), key.status),
                static_cast<double>(count));
  }
  write_head(out, "http_request_duration_seconds", "histogram", "From a request's arrival to the end of its answer.");
  http_seconds_.write(out, "http_request_duration_seconds", "");
  write_head(out, "tidepool:http_cpu_seconds_total", "counter",
             "Processor time of the threads that serve connections.");
  write_value(out, "tidepool:http_cpu_seconds_total", labels_, gauges.io_cpu_seconds);
}

std::string Metrics::write(const Gauges& gauges) const {
  std::string out;
  const std::lock_guard lock(mutex_);
  write_gauges(out, gauges);
  write_counters(out);
  write_drafts(out);
  write_cache(out, gauges.service);
  write_histograms(out);
  write_http(out, gauges);
  return out;
}

}  // namespace tidepool
