#include "apps/progress.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace tidepool {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// A clock that the test moves, and what was written.
class ProgressTest : public testing::Test {
 protected:
  Progress make(bool is_terminal) {
    return {[this](std::string_view text) { written_ += text; }, is_terminal, [this] { return now_; }};
  }
  void pass(int ms) { now_ += milliseconds(ms); }

  std::string written_;
  steady_clock::time_point now_;
};

TEST_F(ProgressTest, ShortWorkSaysNothing) {
  Progress progress = make(true);
  progress.update("work", 0, 4);
  pass(999);
  progress.update("work", 3, 4);
  progress.finish();
  EXPECT_EQ(written_, "");
}

TEST_F(ProgressTest, LongWorkShowsABarAndTakesItAway) {
  Progress progress = make(true);
  progress.update("work", 0, 4);
  pass(1000);
  progress.update("work", 2, 4);
  EXPECT_EQ(written_, "\r\x1b[K[###############...............]  50 % work (2 of 4)");
  written_.clear();
  pass(50);
  progress.update("work", 3, 4);
  EXPECT_EQ(written_, "");
  progress.finish();
  EXPECT_EQ(written_, "\r\x1b[K");
}

TEST_F(ProgressTest, WithoutATerminalItIsALineNowAndThen) {
  Progress progress = make(false);
  progress.update("work", 0, 4);
  pass(1000);
  progress.update("work", 1, 4);
  pass(9999);
  progress.update("work", 2, 4);
  pass(1);
  progress.update("work", 3, 4);
  progress.finish();
  EXPECT_EQ(written_, "tidepool: work: 1 of 4 (25 %)\ntidepool: work: 3 of 4 (75 %)\n");
}

TEST_F(ProgressTest, EachPieceOfWorkBeginsAnew) {
  Progress progress = make(true);
  progress.update("one", 0, 2);
  pass(800);
  progress.finish();
  progress.update("two", 0, 2);
  pass(800);
  progress.update("two", 1, 2);
  EXPECT_EQ(written_, "");
}

}  // namespace
}  // namespace tidepool
