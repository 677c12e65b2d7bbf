#include "kv/absences.h"

#include <gtest/gtest.h>

#include <cstring>

namespace tidepool {
namespace {

BlockKey key_of(uint64_t number) {
  BlockKey key;
  std::memcpy(key.digest.data(), &number, sizeof number);
  return key;
}

TEST(Absences, TheLastReasonIsTold) {
  Absences absences;
  EXPECT_EQ(absences.find(key_of(1)), Absence::kNeverSeen);
  absences.remember(key_of(1), Absence::kEvicted);
  absences.remember(key_of(1), Absence::kChecksum);
  absences.remember(key_of(1), Absence::kNeverSeen);
  EXPECT_EQ(absences.find(key_of(1)), Absence::kChecksum);
}

TEST(Absences, WhatCameBackIsNotAbsent) {
  Absences absences;
  absences.remember(key_of(1), Absence::kEvicted);
  absences.forget(key_of(1));
  EXPECT_EQ(absences.find(key_of(1)), Absence::kNeverSeen);
}

TEST(Absences, TheOldestAreForgotten) {
  Absences absences;
  for (uint64_t i = 0; i < Absences::kMax + 10; ++i)
    absences.remember(key_of(i), Absence::kEvicted);
  EXPECT_EQ(absences.find(key_of(9)), Absence::kNeverSeen);
  EXPECT_EQ(absences.find(key_of(10)), Absence::kEvicted);
}

/// What came back and went again is as young as its second going.
TEST(Absences, AYoungerMemoryOutlivesTheOlderOfTheSameKey) {
  Absences absences;
  absences.remember(key_of(0), Absence::kEvicted);
  absences.forget(key_of(0));
  for (uint64_t i = 1; i < Absences::kMax; ++i)
    absences.remember(key_of(i), Absence::kEvicted);
  absences.remember(key_of(0), Absence::kExpired);
  EXPECT_EQ(absences.find(key_of(0)), Absence::kExpired);
  EXPECT_EQ(absences.find(key_of(1)), Absence::kEvicted);
}

}  // namespace
}  // namespace tidepool
