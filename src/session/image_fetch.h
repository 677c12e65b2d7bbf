#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tidepool {

struct ImageFetchOptions {
  /// The only hosts that pictures are fetched from, each a name or an address, without a port.
  std::vector<std::string> hosts;
  std::chrono::milliseconds timeout{30'000};  ///< of one picture, redirects included
  std::chrono::milliseconds connect_timeout{10'000};
  size_t redirects_max = 3;
  size_t at_once_max = 8;  ///< of all requests
};

/// Fetches pictures from links to hosts that the server's owner has named, and from nowhere else: a client must not
/// make the server ask for it what the client could not ask itself. So the rules hold for redirects too, no proxy,
/// cookie or password plays a part, and an address that is not public is connected to only if it is named itself,
/// whatever a name resolves to. Thread-safe.
class ImageFetcher {
 public:
  /// Throws Error(kInvalidArgument) for what is no host.
  explicit ImageFetcher(ImageFetchOptions options);
  ImageFetcher(const ImageFetcher&) = delete;
  ImageFetcher& operator=(const ImageFetcher&) = delete;
  ~ImageFetcher();

  /// The bytes behind a link, http or https. Waits for them. `path` is the field's, for errors. Throws Error:
  /// kInvalidArgument for a link that may not be followed or gives no picture, kResourceExhausted above `bytes_max`;
  /// and PicturesBusy while as many links are followed as may be at once.
  [[nodiscard]] std::string fetch(const std::string& url, std::string_view path, uint64_t bytes_max) const;

 private:
  ImageFetchOptions options_;
  std::vector<std::string> addresses_;         ///< the hosts that are addresses, as inet_ntop writes them
  mutable std::atomic<size_t> under_way_ = 0;  ///< relaxed: a counter that orders nothing else
};

/// Whether it begins as a URL of http or https, in any case.
[[nodiscard]] bool is_link(std::string_view url);

/// Whether an address, as inet_ntop writes it, is one of the public internet: not of this machine, a local network, a
/// group, or reserved (RFC 6890), nor one that leads to such an IPv4 address.
[[nodiscard]] bool is_public_address(const std::string& address);

}  // namespace tidepool
