#include "session/image_fetch.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "session/image_prompt.h"

namespace tidepool {
namespace {

using testing::HasSubstr;

/// Answers each connection's request, told by its path, with the bytes that the test says, and closes.
class TinyServer {
 public:
  using Answer = std::function<std::string(const std::string& path)>;

  explicit TinyServer(Answer answer)
      : answer_(std::move(answer)), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    TIDEPOOL_CHECK(::bind(listener_, reinterpret_cast<const sockaddr*>(&address), size) == 0, "a port");
    TIDEPOOL_CHECK(::listen(listener_, 16) == 0, "a listener");
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~TinyServer() {
    ::shutdown(listener_, SHUT_RDWR);  // ends accept()
    thread_.join();
    ::close(listener_);
  }
  TinyServer(const TinyServer&) = delete;
  TinyServer& operator=(const TinyServer&) = delete;

  [[nodiscard]] std::string url(const std::string& path, const std::string& host = "127.0.0.1") const {
    return "http://" + host + ":" + std::to_string(port_) + path;
  }
  [[nodiscard]] std::vector<std::string> paths() const {
    const std::lock_guard lock(mutex_);
    return paths_;
  }
  /// Of the last request.
  [[nodiscard]] std::string head() const {
    const std::lock_guard lock(mutex_);
    return head_;
  }

 private:
  void run() {
    while (true) {
      const int client = ::accept(listener_, nullptr, nullptr);
      if (client < 0) return;
      std::string request;
      char c = 0;
      while (!request.ends_with("\r\n\r\n") && ::recv(client, &c, 1, 0) == 1)
        request += c;
      const size_t begin = request.find(' ') + 1;
      const std::string path = request.substr(begin, request.find(' ', begin) - begin);
      {
        const std::lock_guard lock(mutex_);
        paths_.push_back(path);
        head_ = request;
      }
      const std::string answer = answer_(path);
      ::send(client, answer.data(), answer.size(), MSG_NOSIGNAL);
      ::close(client);
    }
  }

  Answer answer_;
  int listener_;
  uint16_t port_ = 0;
  mutable std::mutex mutex_;
  std::vector<std::string> paths_;
  std::string head_;
  std::thread thread_;
};

const std::string kHttp = "http://";

std::string ok(const std::string& body) {
  return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}
std::string moved(const std::string& to) {
  return "HTTP/1.1 302 Found\r\nLocation: " + to + "\r\nContent-Length: 0\r\n\r\n";
}

ImageFetchOptions hosts(std::vector<std::string> names) {
  ImageFetchOptions options;
  options.hosts = std::move(names);
  return options;
}

std::string error_of(const ImageFetcher& fetcher, const std::string& url, uint64_t bytes_max = 1000) {
  try {
    return "no error, but " + fetcher.fetch(url, "messages[0]", bytes_max);
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(ImageFetcher, FetchesFromNamedHosts) {
  const TinyServer server([](const std::string& path) { return ok("picture at " + path); });
  const ImageFetcher fetcher(hosts({"127.0.0.1", "LocalHost."}));
  EXPECT_EQ(fetcher.fetch(server.url("/a.png?b=c"), "x", 1000), "picture at /a.png?b=c");
  EXPECT_EQ(fetcher.fetch(server.url("/b", "LOCALHOST"), "x", 1000), "picture at /b");
  EXPECT_THAT(server.head(), HasSubstr("User-Agent: tidepool\r\n"));
}

TEST(ImageFetcher, AsksNobodyElse) {
  const TinyServer server([](const std::string& path) { return ok(path); });
  const ImageFetcher fetcher(hosts({"example.com"}));
  EXPECT_THAT(error_of(fetcher, server.url("/a")), HasSubstr("messages[0]: links to 127.0.0.1 are not followed"));
  for (const std::string rest :
       {"sub.example.com/", "example.com.evil.example/", "evil.example/example.com", "example.com@127.0.0.1/",
        "example.com:80@127.0.0.1/", "[::1]/", "2130706433/", "/a", "", "exa mple.com/"}) {
    EXPECT_THAT(error_of(fetcher, kHttp + rest), testing::StartsWith("messages[0]: ")) << rest;
  }
  for (const std::string url : {"ftp://example.com/", "file:///etc/passwd", "example.com", ""})
    EXPECT_THAT(error_of(fetcher, url), testing::StartsWith("messages[0]: ")) << url;
  EXPECT_THAT(error_of(fetcher, kHttp + "user:secret@example.com/"), HasSubstr("user or password"));
  EXPECT_THAT(error_of(fetcher, "http://example.com/" + std::string(9000, 'a')), HasSubstr("8192"));
  EXPECT_TRUE(server.paths().empty());
}

TEST(ImageFetcher, TakesNamesAndAddressesOfHostsOnly) {
  for (const std::string host :
       {"example.com", "EXAMPLE.com.", "10.0.0.1", "::1", "[2606:4700::1111]", "bücher.example"})
    EXPECT_NO_THROW(ImageFetcher(hosts({host}))) << host;
  for (const std::string host : {"", "*", "http://example.com", "example.com:80", "example.com/a", "a b"})
    EXPECT_THROW(ImageFetcher(hosts({host})), Error) << host;
}

/// A name that leads to this machine or its network is no way around the rule.
TEST(ImageFetcher, ConnectsToNoPrivateAddressThatIsNotNamed) {
  const TinyServer server([](const std::string& path) { return ok(path); });
  EXPECT_EQ(ImageFetcher(hosts({"localhost"})).fetch(server.url("/a", "localhost"), "x", 100), "/a");
  // Another name of this machine, which stands for no address that may be connected to.
  EXPECT_THAT(error_of(ImageFetcher(hosts({"a.localhost", "example.com"})), server.url("/a", "a.localhost")),
              HasSubstr("not public"));
  EXPECT_THAT(server.paths(), testing::ElementsAre("/a"));
  for (const std::string address : {"0.0.0.0",
                                    "10.1.2.3",
                                    "100.64.0.1",
                                    "127.0.0.1",
                                    "169.254.169.254",
                                    "172.16.0.1",
                                    "172.31.255.255",
                                    "192.168.1.1",
                                    "198.19.0.1",
                                    "224.0.0.1",
                                    "255.255.255.255",
                                    "::",
                                    "::1",
                                    "fe80::1",
                                    "fc00::1",
                                    "fd12::1",
                                    "ff02::1",
                                    "::ffff:8.8.8.8",
                                    "64:ff9b::a00:1",
                                    "2001:db8::1",
                                    "2001::1",
                                    "2002:7f00:1::",
                                    "2002:a00:1::",
                                    "nothing",
                                    ""})
    EXPECT_FALSE(is_public_address(address)) << address;
  for (const std::string address : {"8.8.8.8", "100.128.0.1", "172.32.0.1", "172.15.0.1", "192.167.1.1", "223.1.1.1",
                                    "2606:4700::1111", "2002:808:808::", "2a00::1"})
    EXPECT_TRUE(is_public_address(address)) << address;
}

TEST(ImageFetcher, FollowsRedirectsByTheSameRules) {
  const TinyServer elsewhere([](const std::string& path) { return ok("private " + path); });
  std::string home;
  const TinyServer server([&](const std::string& path) {
    if (path == "/moved") return moved("/here");
    if (path == "/round") return moved("/round");
    if (path == "/out") return moved(elsewhere.url("/x", "localhost"));
    if (path == "/file") return moved("file:///etc/passwd");
    if (path == "/nowhere") return std::string("HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n");
    return ok("here");
  });
  const ImageFetcher fetcher(hosts({"127.0.0.1"}));
  EXPECT_EQ(fetcher.fetch(server.url("/moved"), "x", 1000), "here");
  EXPECT_THAT(error_of(fetcher, server.url("/round")), HasSubstr("too often"));
  EXPECT_THAT(error_of(fetcher, server.url("/out")), HasSubstr("links to localhost are not followed"));
  EXPECT_THAT(error_of(fetcher, server.url("/file")), HasSubstr("no http or https URL"));
  EXPECT_THAT(error_of(fetcher, server.url("/nowhere")), HasSubstr("status 302"));
  EXPECT_TRUE(elsewhere.paths().empty());
}

TEST(ImageFetcher, EndsWhatIsTooLargeTooSlowOrNoAnswer) {
  const TinyServer server([](const std::string& path) {
    if (path == "/said") return ok(std::string(101, 'a'));
    if (path == "/unsaid") return "HTTP/1.1 200 OK\r\n\r\n" + std::string(100'000, 'a');
    if (path == "/missing") return std::string("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    if (path == "/cut") return std::string("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nabc");
    return path == "/fits" ? ok(std::string(100, 'a')) : std::string("what?");
  });
  ImageFetchOptions options = hosts({"127.0.0.1"});
  const ImageFetcher fetcher(options);
  EXPECT_EQ(fetcher.fetch(server.url("/fits"), "x", 100).size(), 100U);
  EXPECT_THAT(error_of(fetcher, server.url("/said"), 100), HasSubstr("larger than the limit of 100 bytes"));
  EXPECT_THAT(error_of(fetcher, server.url("/unsaid"), 100), HasSubstr("larger than the limit of 100 bytes"));
  EXPECT_THAT(error_of(fetcher, server.url("/missing")), HasSubstr("status 404"));
  EXPECT_THAT(error_of(fetcher, server.url("/cut")), HasSubstr("could not be asked"));
  EXPECT_THAT(error_of(fetcher, server.url("/garbage")), HasSubstr("could not be asked"));
  // Listens, and nobody accepts.
  const int silent = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(::bind(silent, reinterpret_cast<const sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(silent, 1), 0);
  ::getsockname(silent, reinterpret_cast<sockaddr*>(&address), &size);
  options.timeout = std::chrono::milliseconds(50);
  EXPECT_THAT(error_of(ImageFetcher(options), "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port)) + "/"),
              HasSubstr("could not be asked"));
  ::close(silent);
}

TEST(ImageFetcher, TooManyAtOnceComeBackLater) {
  const ImageFetcher* busy = nullptr;
  bool was_busy = false;
  std::string link;
  const TinyServer server([&](const std::string& path) {
    try {
      (void)busy->fetch(link, "messages[0]", 100);
    } catch (const PicturesBusy&) {
      was_busy = true;
    }
    return ok(path);
  });
  ImageFetchOptions options = hosts({"127.0.0.1"});
  options.at_once_max = 1;
  const ImageFetcher fetcher(options);
  busy = &fetcher;
  link = server.url("/inner");
  EXPECT_EQ(fetcher.fetch(server.url("/outer"), "x", 100), "/outer");
  EXPECT_TRUE(was_busy);
}

}  // namespace
}  // namespace tidepool
