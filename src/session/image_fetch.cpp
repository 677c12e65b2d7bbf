#include "session/image_fetch.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "session/image_prompt.h"

namespace tidepool {
namespace {

using Clock = std::chrono::steady_clock;

/// As the hosted service has it.
constexpr size_t kUrlBytesMax = 8192;

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

/// A host as it is compared: no case, no brackets of IPv6, no dot of the root.
std::string plain_host(std::string_view host) {
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host.ends_with('.')) host.remove_suffix(1);
  return lower(host);
}

struct Prefix {
  std::array<uint8_t, 16> bytes{};
  size_t bits = 0;
};

bool has_prefix(const uint8_t* address, const Prefix& prefix) {
  for (size_t bit = 0; bit < prefix.bits; ++bit) {
    const auto mask = static_cast<uint8_t>(0x80U >> (bit % 8));
    if ((address[bit / 8] & mask) != (prefix.bytes[bit / 8] & mask)) return false;
  }
  return true;
}

/// RFC 6890 and its registry; groups.
constexpr std::array<Prefix, 15> kNotPublic4 = {{{{0}, 8},
                                                 {{10}, 8},
                                                 {{100, 64}, 10},
                                                 {{127}, 8},
                                                 {{169, 254}, 16},
                                                 {{172, 16}, 12},
                                                 {{192, 0, 0}, 24},
                                                 {{192, 0, 2}, 24},
                                                 {{192, 88, 99}, 24},
                                                 {{192, 168}, 16},
                                                 {{198, 18}, 15},
                                                 {{198, 51, 100}, 24},
                                                 {{203, 0, 113}, 24},
                                                 {{224}, 4},
                                                 {{240}, 4}}};
/// The public ones begin with 001; of these Teredo, documentation and the like (2001::/23, 2001:db8::/32) are not.
constexpr Prefix kPublic6 = {{0x20}, 3};
constexpr std::array<Prefix, 2> kNotPublic6 = {{{{0x20, 0x01, 0x00}, 23}, {{0x20, 0x01, 0x0d, 0xb8}, 32}}};
/// 6to4, whose next four bytes are an IPv4 address.
constexpr Prefix k6to4 = {{0x20, 0x02}, 16};

bool is_public4(const uint8_t* address) {
  return std::none_of(kNotPublic4.begin(), kNotPublic4.end(),
                      [&](const Prefix& prefix) { return has_prefix(address, prefix); });
}

bool is_public6(const uint8_t* address) {
  if (!has_prefix(address, kPublic6)) return false;
  if (has_prefix(address, k6to4)) return is_public4(address + 2);
  return std::none_of(kNotPublic6.begin(), kNotPublic6.end(),
                      [&](const Prefix& prefix) { return has_prefix(address, prefix); });
}

/// As inet_ntop writes it; empty for what is no address.
std::string normal_address(const std::string& host) {
  std::array<uint8_t, 16> bytes{};
  std::array<char, INET6_ADDRSTRLEN> text{};
  for (const int family : {AF_INET, AF_INET6}) {
    if (::inet_pton(family, host.c_str(), bytes.data()) != 1) continue;
    if (::inet_ntop(family, bytes.data(), text.data(), text.size()) != nullptr) return text.data();
  }
  return "";
}

bool is_named(const std::vector<std::string>& hosts, const std::string& host) {
  return std::find(hosts.begin(), hosts.end(), host) != hosts.end();
}

bool is_name(std::string_view host) {
  return !host.empty() && std::all_of(host.begin(), host.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '.' || c == '_' || c >= 0x80;
  });
}

std::string address_text(const sockaddr& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* bytes = nullptr;
  if (address.sa_family == AF_INET) bytes = &reinterpret_cast<const sockaddr_in&>(address).sin_addr;
  if (address.sa_family == AF_INET6) bytes = &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  if (bytes == nullptr) return "";
  return ::inet_ntop(address.sa_family, bytes, text.data(), text.size()) == nullptr ? "" : text.data();
}

struct UrlCleanup {
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};
struct EasyCleanup {
  void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
};
using Url = std::unique_ptr<CURLU, UrlCleanup>;
using Easy = std::unique_ptr<CURL, EasyCleanup>;

/// A part of a URL; empty when it has none.
std::string part_of(const Url& url, CURLUPart part) {
  char* text = nullptr;
  if (curl_url_get(url.get(), part, &text, 0) != CURLUE_OK) return "";
  std::string result(text);
  curl_free(text);
  return result;
}

template <typename Value>
void set(const Easy& easy, CURLoption option, Value value) {
  const CURLcode code = curl_easy_setopt(easy.get(), option, value);
  if (code != CURLE_OK)
    throw Error(ErrorCode::kUnsupported, fmt::format("links cannot be followed: {}", curl_easy_strerror(code)));
}

/// One picture on its way.
struct Transfer {
  const std::vector<std::string>& addresses;  ///< that may be connected to though they are not public
  bool allows_loopback = false;
  uint64_t bytes_max = 0;
  std::string body{};
  bool is_too_large = false;
  bool is_private = false;
};

size_t take_bytes(char* data, size_t size, size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  const size_t bytes = size * count;
  if (bytes > transfer.bytes_max - transfer.body.size()) {
    transfer.is_too_large = true;
    return 0;
  }
  try {
    transfer.body.append(data, bytes);
  } catch (const std::bad_alloc&) {
    return 0;  // C code is above: it hears that the bytes were not taken
  }
  return bytes;
}

/// Looks at the address that a name was resolved to, when it is about to be connected to: a later look could find
/// another one.
curl_socket_t open_socket(void* user, curlsocktype /*purpose*/, curl_sockaddr* address) {
  auto& transfer = *static_cast<Transfer*>(user);
  const std::string text = address_text(address->addr);
  const bool is_loopback = text == "::1" || text.starts_with("127.");
  const bool is_allowed =
      is_public_address(text) || is_named(transfer.addresses, text) || (is_loopback && transfer.allows_loopback);
  if (!is_allowed) {
    transfer.is_private = true;
    return CURL_SOCKET_BAD;
  }
  return ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

/// A place among those that are under way, given back at the end.
class Place {
 public:
  Place(std::atomic<size_t>& count, size_t most) : count_(count) {
    is_taken_ = count_.fetch_add(1, std::memory_order_relaxed) < most;
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  ~Place() { count_.fetch_sub(1, std::memory_order_relaxed); }
  [[nodiscard]] bool is_taken() const { return is_taken_; }

 private:
  std::atomic<size_t>& count_;
  bool is_taken_ = false;
};

/// One request of a link that was checked; its status.
long perform(const Easy& easy, const Url& url, const std::string& host, Transfer& transfer, std::string_view path) {
  set(easy, CURLOPT_CURLU, url.get());
  const CURLcode code = curl_easy_perform(easy.get());
  if (transfer.is_too_large) {
    throw Error(ErrorCode::kResourceExhausted,
                fmt::format("{}: what {} sends is larger than the limit of {} bytes; use a smaller picture", path,
                            printable(host), transfer.bytes_max));
  }
  if (code != CURLE_OK && transfer.is_private) {  // else another of its addresses was public
    refuse_argument(path,
                    fmt::format("{} has an address that is not public, which --allowed-media-domains must name itself",
                                printable(host)));
  }
  if (code != CURLE_OK)
    refuse_argument(
        path, fmt::format("{} could not be asked for the picture: {}", printable(host), curl_easy_strerror(code)));
  long status = 0;
  curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &status);
  return status;
}

/// A link that may be followed.
Url check_link(const std::string& link, const std::vector<std::string>& hosts, std::string_view path) {
  if (link.size() > kUrlBytesMax) refuse_argument(path, fmt::format("a link may have {} characters", kUrlBytesMax));
  Url url(curl_url());
  if (!is_link(link) || curl_url_set(url.get(), CURLUPART_URL, link.c_str(), 0) != CURLUE_OK)
    refuse_argument(path, "the link is no http or https URL");
  if (!part_of(url, CURLUPART_USER).empty() || !part_of(url, CURLUPART_PASSWORD).empty())
    refuse_argument(path, "a link must not have a user or password in it");
  const std::string host = part_of(url, CURLUPART_HOST);
  if (is_named(hosts, plain_host(host))) return url;
  refuse_argument(path,
                  fmt::format("links to {} are not followed, only to the hosts of --allowed-media-domains; send the "
                              "picture itself as data:image/...;base64,...",
                              printable(host)));
}

/// Sets up what is the same for each request of a transfer, which must outlive it.
Easy make_easy(const ImageFetchOptions& options, Transfer& transfer) {
  Easy easy(curl_easy_init());
  if (!easy) throw Error(ErrorCode::kResourceExhausted, "there is no memory to follow links");
  set(easy, CURLOPT_NOSIGNAL, 1L);
  set(easy, CURLOPT_PROXY, "");  // not even one that the environment names
  set(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  set(easy, CURLOPT_USERAGENT, "tidepool");
  set(easy, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options.connect_timeout.count()));
  set(easy, CURLOPT_WRITEFUNCTION, &take_bytes);
  set(easy, CURLOPT_WRITEDATA, &transfer);
  set(easy, CURLOPT_OPENSOCKETFUNCTION, &open_socket);
  set(easy, CURLOPT_OPENSOCKETDATA, &transfer);
  return easy;
}

}  // namespace

bool is_link(std::string_view url) {
  const std::string head = lower(url.substr(0, 8));
  return head.starts_with("http://") || head.starts_with("https://");
}

bool is_public_address(const std::string& address) {
  std::array<uint8_t, 16> bytes{};
  if (::inet_pton(AF_INET, address.c_str(), bytes.data()) == 1) return is_public4(bytes.data());
  return ::inet_pton(AF_INET6, address.c_str(), bytes.data()) == 1 && is_public6(bytes.data());
}

ImageFetcher::ImageFetcher(ImageFetchOptions options) : options_(std::move(options)) {
  addresses_.reserve(options_.hosts.size());
  for (std::string& host : options_.hosts) {
    host = plain_host(host);
    if (std::string address = normal_address(host); !address.empty()) {
      addresses_.push_back(std::move(address));
    } else if (!is_name(host)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("--allowed-media-domains: \"{}\" is no host; give its name or address, without http:// "
                              "and port",
                              printable(host)));
    }
  }
  // Counted by the library itself; the first call of all must not be within a transfer.
  if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
    throw Error(ErrorCode::kUnsupported, "links cannot be followed: libcurl does not start");
}

ImageFetcher::~ImageFetcher() {
  curl_global_cleanup();
}

std::string ImageFetcher::fetch(const std::string& url, std::string_view path, uint64_t bytes_max) const {
  const Place place(under_way_, options_.at_once_max);
  if (!place.is_taken())
    throw PicturesBusy(ErrorCode::kResourceExhausted, fmt::format("{}: too many links are followed at once", path));
  const Clock::time_point end = Clock::now() + options_.timeout;
  Transfer transfer{.addresses = addresses_, .allows_loopback = is_named(options_.hosts, "localhost")};
  transfer.bytes_max = bytes_max;
  const Easy easy = make_easy(options_, transfer);
  std::string link = url;
  for (size_t redirects = 0; redirects <= options_.redirects_max; ++redirects) {
    const Url checked = check_link(link, options_.hosts, path);
    const std::string host = part_of(checked, CURLUPART_HOST);
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    set(easy, CURLOPT_TIMEOUT_MS, static_cast<long>(std::max<int64_t>(left.count(), 1)));
    transfer.body.clear();
    transfer.is_private = false;
    const long status = perform(easy, checked, host, transfer, path);
    if (status == 200) return std::move(transfer.body);
    const char* next = nullptr;
    curl_easy_getinfo(easy.get(), CURLINFO_REDIRECT_URL, &next);
    if (next == nullptr) refuse_argument(path, fmt::format("{} answers with status {}", printable(host), status));
    link = next;
  }
  refuse_argument(path, "the link leads from one place to another too often");
}

}  // namespace tidepool
