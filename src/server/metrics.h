#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "session/service.h"

namespace tidepool {

/// Counts how often values fell below its bounds.
class Histogram {
 public:
  /// `bounds` ascending.
  explicit Histogram(std::vector<double> bounds);
  void observe(double value, uint64_t times = 1);
  /// Prometheus text: `name`_bucket, _sum and _count, with `labels` ("a=\"b\",c=\"d\"") on each.
  void write(std::string& out, std::string_view name, std::string_view labels) const;

 private:
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;  ///< per bound, and one above all
  double sum_ = 0;
  uint64_t count_ = 0;
};

/// The moments of one request.
struct RequestTimes {
  using Time = std::chrono::steady_clock::time_point;
  Time arrival;
  std::optional<Time> start;        ///< its prompt began to be read
  std::optional<Time> first_token;  ///< of any choice
  std::optional<Time> last_token;
};

/// What a request came to, as its client saw it; the engine's own RequestRecord ends before the answer is written.
struct RequestOutcome {
  RequestTimes times;
  std::chrono::steady_clock::time_point end;
  std::string_view finish;  ///< "stop", "length", "abort" or "error"
  int64_t prompt_tokens = 0;
  int64_t generation_tokens = 0;
  int64_t max_tokens = 0;  ///< 0: none was asked for
  int64_t choices = 1;
};

/// The server's counters, under the names that dashboards for vLLM read. Thread-safe. (docs/api.md, metrics)
class Metrics {
 public:
  explicit Metrics(const std::string& model_name, int64_t context_max = 1 << 20);

  void count_prompt(const CacheReport& cache);
  /// So many tokens of one request came at once, `gap` after those before them.
  void count_tokens(int64_t tokens, std::optional<std::chrono::steady_clock::duration> gap);
  void count_drafts(const DraftCounts& drafts);
  void count_request(const RequestOutcome& outcome);
  void count_http(std::string_view handler, std::string_view method, int status,
                  std::chrono::steady_clock::duration duration);

  /// Gauges are given with the call.
  struct Gauges {
    ServiceStatus service;
    uint64_t weight_bytes = 0;  ///< mapped, of which the system keeps in memory what fits
    double kv_bytes_per_token = 0;
    double io_cpu_seconds = 0;
    size_t open_connections = 0;
    bool is_ready = false;
  };
  /// Prometheus text 0.0.4.
  [[nodiscard]] std::string write(const Gauges& gauges) const;

 private:
  struct HttpKey {
    std::string handler;
    std::string method;
    int status = 0;
    friend auto operator<=>(const HttpKey&, const HttpKey&) = default;  // NOLINT(*-nullptr,*-conversion)
  };
  void write_gauges(std::string& out, const Gauges& gauges) const;
  void write_counters(std::string& out) const;
  void write_drafts(std::string& out) const;
  void write_cache(std::string& out, const ServiceStatus& status) const;
  void write_histograms(std::string& out) const;
  void write_http(std::string& out, const Gauges& gauges) const;

  const std::string labels_;
  mutable std::mutex mutex_;  ///< guards all below
  uint64_t prompt_tokens_ = 0;
  uint64_t generation_tokens_ = 0;
  uint64_t hit_tokens_ = 0;
  std::map<std::string, uint64_t, std::less<>> hit_tokens_by_tier_;
  DraftCounts drafts_;
  std::map<std::string, uint64_t, std::less<>> finished_;
  std::map<HttpKey, uint64_t> http_requests_;
  std::map<std::string, Histogram, std::less<>> seconds_;
  std::map<std::string, Histogram, std::less<>> tokens_;
  Histogram http_seconds_;
};

}  // namespace tidepool
