#include "apps/interrupts.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <utility>

#include "base/check.h"

namespace tidepool {
namespace {

sigset_t interrupt_set() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

Interrupts::Interrupts(std::function<void()> on_interrupt) : on_interrupt_(std::move(on_interrupt)) {
  const sigset_t set = interrupt_set();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signals_ = ::signalfd(-1, &set, SFD_CLOEXEC);
  end_ = ::eventfd(0, EFD_CLOEXEC);
  TIDEPOOL_CHECK(signals_ >= 0 && end_ >= 0, "two descriptors for signals");
  thread_ = std::jthread([this] { listen(); });
}

Interrupts::~Interrupts() {
  const uint64_t one = 1;
  TIDEPOOL_CHECK(::write(end_, &one, sizeof(one)) == sizeof(one), "an event can be counted");
  thread_.join();
  ::close(signals_);
  ::close(end_);
  const sigset_t set = interrupt_set();
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

void Interrupts::listen() const {
  std::array<pollfd, 2> ready = {pollfd{signals_, POLLIN, 0}, pollfd{end_, POLLIN, 0}};
  while (true) {
    if (::poll(ready.data(), ready.size(), -1) < 0) continue;  // a signal of another kind came between
    if (ready[1].revents != 0) return;
    signalfd_siginfo info{};
    if (::read(signals_, &info, sizeof(info)) == sizeof(info)) on_interrupt_();
  }
}

}  // namespace tidepool
