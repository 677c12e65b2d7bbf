#include "session/stop_finder.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace tidepool {
namespace {

struct Found {
  std::string text;
  std::optional<size_t> met;
};

/// The text cut at `cuts` (a bit for each place between two bytes).
Found find(const std::vector<std::string>& stops, std::string_view text, unsigned cuts) {
  StopFinder finder(stops);
  Found found;
  std::string piece;
  for (size_t i = 0; i < text.size(); ++i) {
    piece += text[i];
    if ((cuts >> i & 1U) == 0 && i + 1 < text.size()) continue;
    found.text += finder.feed(piece);
    piece.clear();
  }
  found.met = finder.met();
  found.text += finder.finish();
  return found;
}

/// Whatever the cuts, the answer is that of the whole text.
void expect_found(const std::vector<std::string>& stops, std::string_view text, const Found& expected) {
  for (unsigned cuts = 0; cuts < 1U << (text.size() - 1); ++cuts) {
    const Found found = find(stops, text, cuts);
    ASSERT_EQ(found.text, expected.text) << "cuts " << cuts;
    ASSERT_EQ(found.met, expected.met) << "cuts " << cuts;
  }
}

TEST(StopFinder, CutsBeforeTheStopWhereverItIsSplit) {
  expect_found({"fox"}, "own foxes", {"own ", 0});
}

TEST(StopFinder, HeldTextComesOutWhenItWasNoStop) {
  expect_found({"abc"}, "xabababd", {"xabababd", std::nullopt});
  expect_found({"abc"}, "xyzab", {"xyzab", std::nullopt});
}

TEST(StopFinder, OverlapWithItselfIsFound) {
  expect_found({"aab"}, "aaaab", {"aa", 0});
}

/// "bc" is complete one byte before "abcd" would be.
TEST(StopFinder, TheFirstToBeCompleteWins) {
  expect_found({"abcd", "bc"}, "xabcd", {"xa", 1});
}

TEST(StopFinder, TheLongestOfThoseThatEndTogetherWins) {
  expect_found({"bc", "abc"}, "xabcd", {"x", 1});
}

TEST(StopFinder, NothingFollowsAStop) {
  StopFinder finder({"."});
  EXPECT_EQ(finder.feed("One. Two."), "One");
  EXPECT_EQ(finder.feed(" Three"), "");
  EXPECT_EQ(finder.finish(), "");
}

TEST(StopFinder, WithoutStopsNothingIsHeld) {
  StopFinder finder({});
  EXPECT_EQ(finder.feed("abc"), "abc");
}

TEST(StopFinder, EmptyStopIsRefused) {
  EXPECT_THROW(StopFinder({"a", ""}), Error);
}

}  // namespace
}  // namespace tidepool
