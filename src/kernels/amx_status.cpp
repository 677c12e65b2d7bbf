#include "kernels/amx_status.h"

#include <cpuid.h>
#include <pthread.h>
#include <setjmp.h>  // NOLINT(modernize-deprecated-headers): sigsetjmp is POSIX
#include <signal.h>  // NOLINT(modernize-deprecated-headers): so is sigaction
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.h"
#include "kernels/amx_status_internal.h"
#include "kernels/kernel_table_internal.h"

namespace tidepool::kernels {
namespace {

/// What the signal handler needs of the trial that is going on; there is one at a time.
struct Trial {
  sigjmp_buf back;
  pthread_t thread;
  struct sigaction old_illegal;
  struct sigaction old_segment;
};
Trial* current_trial = nullptr;

/// A fault of another thread is none of ours: with the old handler back it happens again, and goes there.
void on_fault(int signal_number) {
  if (current_trial != nullptr && pthread_equal(pthread_self(), current_trial->thread) != 0) {
    siglongjmp(current_trial->back, 1);
  }
  if (current_trial == nullptr) return;
  sigaction(signal_number, signal_number == SIGILL ? &current_trial->old_illegal : &current_trial->old_segment,
            nullptr);
}

/// Apart from `survives`, so that no variable of it lives across the jump.
bool run_trial(Trial& trial, void (*body)(void*), void* context) {
  if (sigsetjmp(trial.back, 1) != 0) return false;
  body(context);
  return true;
}

/// Leaf 7: EDX bit 24 says that there are tiles, bit 22 that they multiply bfloat16.
bool cpu_names_tiles() {
  constexpr unsigned kAmxTile = 1U << 24U;
  constexpr unsigned kAmxBf16 = 1U << 22U;
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (edx & kAmxTile) != 0 && (edx & kAmxBf16) != 0;
}

/// Linux keeps the tiles' 8 KiB of state for processes that asked. (0x1022 is the call that only looks.)
bool os_gives_leave() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

AmxStatus find_status() {
  if (!cpu_names_tiles()) return AmxStatus::kUnsupportedByCpu;
  if (!os_gives_leave()) return AmxStatus::kRefusedByOs;
  bool is_right = false;
  const auto multiply = [](void* answer) { *static_cast<bool*>(answer) = amx::multiplies_one_tile_right(); };
  if (!survives(multiply, &is_right)) return AmxStatus::kFaulted;
  return is_right ? AmxStatus::kReady : AmxStatus::kWrongResult;
}

}  // namespace

bool survives(void (*body)(void*), void* context) noexcept {
  TIDEPOOL_CHECK(current_trial == nullptr, "one trial at a time");
  Trial trial;
  trial.thread = pthread_self();
  struct sigaction ours = {};
  ours.sa_handler = on_fault;
  sigemptyset(&ours.sa_mask);
  current_trial = &trial;
  sigaction(SIGILL, &ours, &trial.old_illegal);
  sigaction(SIGSEGV, &ours, &trial.old_segment);
  const bool survived = run_trial(trial, body, context);
  sigaction(SIGILL, &trial.old_illegal, nullptr);
  sigaction(SIGSEGV, &trial.old_segment, nullptr);
  current_trial = nullptr;
  return survived;
}

AmxStatus amx_status() {
  static const AmxStatus status = find_status();
  return status;
}

std::string_view amx_status_text(AmxStatus status) {
  switch (status) {
    case AmxStatus::kUnsupportedByCpu: return "not named by this processor";
    case AmxStatus::kRefusedByOs: return "refused by the operating system (Linux 5.16 or later gives leave)";
    case AmxStatus::kFaulted: return "named by this processor, but its first instruction faults";
    case AmxStatus::kWrongResult: return "named by this processor, but a small product comes out wrong";
    case AmxStatus::kReady: return "ready";
  }
  TIDEPOOL_CHECK(false, "not a status");
}

}  // namespace tidepool::kernels
