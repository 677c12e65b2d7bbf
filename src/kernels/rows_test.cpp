#include <limits>

#include "kernels/kernels_test_support.h"

namespace tidepool::kernels {
namespace {

using testing::Random;
using testing::same_bits;

using testing::kSpecialValues;

class Rows : public testing::EveryTable {};
TIDEPOOL_FOR_EVERY_TABLE(Rows);

constexpr size_t kCounts[] = {0, 1, 2, 7, 8, 9, 15, 16, 17, 33, 63, 64, 65, 100, 512, 5120};

/// Bit patterns of every kind: ordinary ones, subnormals, infinities, NaNs, ties of bfloat16.
float any_float(Random& random) {
  switch (random.below(8)) {
    case 0: return std::bit_cast<float>(static_cast<uint32_t>(random.bits()));
    case 1: return std::bit_cast<float>(static_cast<uint32_t>(random.bits()) & 0x807fffffU);
    case 2: return std::bit_cast<float>((static_cast<uint32_t>(random.bits()) & 0xffff0000U) | 0x8000U);
    case 3: return random.below(2) == 0 ? -0.0F : 0.0F;
    case 4: return testing::kSpecialValues[random.below(std::size(testing::kSpecialValues))];
    default: return random.value();
  }
}

TEST_P(Rows, RoundBf16GivesTheReferencesBits) {
  Random random(1);
  for (const size_t count : kCounts) {
    std::vector<float> x(count);
    for (float& v : x)
      v = any_float(random);
    std::vector<float> expected = x;
    for (float& v : expected)
      v = tidepool::round_bf16(v);
    table().round_bf16(x.data(), count);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(std::bit_cast<uint32_t>(x[i]), std::bit_cast<uint32_t>(expected[i])) << i;
    }
  }
}

TEST_P(Rows, QuantiseFp8GivesTheReferencesBits) {
  Random random(2);
  for (int round = 0; round < 400; ++round) {
    std::vector<float> x(96);
    // Magnitudes from below the floor of the scale to the largest binary32, and blocks with one outlier.
    const float scale = std::ldexp(1.0F, static_cast<int>(random.below(150)) - 40);
    for (float& v : x)
      v = random.value() * scale * (random.below(20) == 0 ? 1000.0F : 1.0F);
    if (round % 4 == 1) x[random.below(96)] = any_float(random);
    // The edge of a scale: 448 * 2^n exactly, one step above, one below.
    if (round % 4 == 2) x[5] = 448 * scale;
    if (round % 4 == 3) x[5] = std::nextafter(448 * scale, round % 8 == 3 ? 0.0F : 1e38F);
    for (size_t i = 32; i < 64 && round % 5 == 0; ++i) {
      x[i] = std::ldexp(static_cast<float>(random.below(480)) / 16, static_cast<int>(random.below(6)) - 8);
    }
    std::vector<float> expected = x;
    reference_kernels().quantise_fp8(expected.data(), x.size());
    std::vector<float> actual = x;
    table().quantise_fp8(actual.data(), x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_TRUE(same_bits(actual[i], expected[i])) << x[i] << " became " << actual[i] << ", not " << expected[i];
    }
  }
}

TEST_P(Rows, QuantiseFp8MakesABlockWithAnInfinityOrNaNAllNaN) {
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x(64, 1.0F);
    x[37] = bad;
    table().quantise_fp8(x.data(), x.size());
    for (size_t i = 0; i < 64; ++i)
      EXPECT_EQ(std::isnan(x[i]), i >= 32) << i;
  }
}

TEST_P(Rows, QuantiseFp8IsIdempotent) {
  Random random(3);
  std::vector<float> x = random.values(320, 50);
  table().quantise_fp8(x.data(), x.size());
  std::vector<float> again = x;
  table().quantise_fp8(again.data(), x.size());
  EXPECT_EQ(again, x);
}

TEST_P(Rows, RopeGivesTheReferencesBitsAndTurnsBack) {
  Random random(4);
  for (const size_t pairs : {0U, 1U, 3U, 4U, 5U, 7U, 8U, 9U, 16U, 32U}) {
    const std::vector<float> x = random.values(2 * pairs);
    std::vector<float> cos(pairs);
    std::vector<float> sin(pairs);
    for (size_t i = 0; i < pairs; ++i) {
      const float angle = random.value() * 100;
      cos[i] = std::cos(angle);
      sin[i] = std::sin(angle);
    }
    for (const float sign : {1.0F, -1.0F}) {
      std::vector<float> expected = x;
      reference_kernels().rope(expected.data(), cos.data(), sin.data(), pairs, sign);
      std::vector<float> actual = x;
      table().rope(actual.data(), cos.data(), sin.data(), pairs, sign);
      for (size_t i = 0; i < 2 * pairs; ++i)
        ASSERT_TRUE(same_bits(actual[i], expected[i])) << pairs << " at " << i;
      table().rope(actual.data(), cos.data(), sin.data(), pairs, -sign);
      // Two turns, each four roundings of values below sqrt(2), and cos^2 + sin^2 off 1 by 2^-23.
      for (size_t i = 0; i < 2 * pairs; ++i)
        ASSERT_NEAR(actual[i], x[i], 8 * 0x1p-23F);
    }
  }
}

TEST_P(Rows, RopeGivesTheReferencesBitsForAllKindsOfValues) {
  Random random(10);
  for (const size_t pairs : {1U, 5U, 8U, 9U, 32U, 100U}) {
    std::vector<float> x(2 * pairs);
    for (float& v : x)
      v = any_float(random);
    std::vector<float> cos = random.values(pairs);
    const std::vector<float> sin = random.values(pairs);
    cos[pairs / 2] = 0;
    for (const float sign : {1.0F, -1.0F}) {
      std::vector<float> expected = x;
      reference_kernels().rope(expected.data(), cos.data(), sin.data(), pairs, sign);
      std::vector<float> actual = x;
      table().rope(actual.data(), cos.data(), sin.data(), pairs, sign);
      for (size_t i = 0; i < 2 * pairs; ++i)
        ASSERT_TRUE(same_bits(actual[i], expected[i])) << pairs << " at " << i;
    }
  }
}

TEST_P(Rows, RmsNormAgreesWithTheReference) {
  Random random(5);
  for (const size_t count : kCounts) {
    if (count == 0) continue;
    const std::vector<float> x = random.values(count, 30);
    std::vector<Bf16> weight(count);
    for (Bf16& w : weight)
      w = to_bf16(random.value() * 2);
    for (const Bf16* w : {static_cast<const Bf16*>(weight.data()), static_cast<const Bf16*>(nullptr)}) {
      std::vector<float> expected(count);
      reference_kernels().rms_norm(x.data(), w, count, 1e-20F, expected.data());
      std::vector<float> actual = x;
      table().rms_norm(actual.data(), w, count, 1e-20F, actual.data());
      // Only positive terms are added, at most 5120 / 32 in a row, each sum within 2^-24: 160 * 2^-24 of the mean, half
      // of that after the root, and four more roundings.
      for (size_t i = 0; i < count; ++i)
        ASSERT_NEAR(actual[i], expected[i], std::fabs(expected[i]) * 84 * 0x1p-24F);
    }
  }
}

/// A NaN is in every output. An infinity leaves zeros beside it and becomes NaN itself.
TEST_P(Rows, RmsNormOfSpecialValuesIsOfTheReferencesKind) {
  Random random(11);
  for (const float special : kSpecialValues) {
    for (const size_t count : {1U, 8U, 40U, 77U}) {
      for (const size_t place : {size_t{0}, count / 2, count - 1}) {
        std::vector<float> x = random.values(count);
        x[place] = special;
        std::vector<float> expected(count);
        reference_kernels().rms_norm(x.data(), nullptr, count, 1e-20F, expected.data());
        table().rms_norm(x.data(), nullptr, count, 1e-20F, x.data());
        testing::expect_same_kind_and_near(x, expected,
                                           [&](size_t i) { return std::fabs(expected[i]) * 8 * 0x1p-24F + 0x1p-149F; });
        EXPECT_EQ(std::isfinite(x[place]), std::isfinite(special)) << special;
      }
    }
  }
  // All below 2^-126: the squares vanish against eps, the values do not.
  std::vector<float> x(40, 0x1p-133F);
  table().rms_norm(x.data(), nullptr, x.size(), 0x1p-66F, x.data());
  EXPECT_EQ(x, std::vector<float>(40, 0x1p-100F));
}

TEST_P(Rows, RmsNormOfZerosIsZero) {
  std::vector<float> x(40, 0.0F);
  table().rms_norm(x.data(), nullptr, x.size(), 1e-20F, x.data());
  for (const float v : x)
    EXPECT_EQ(v, 0.0F);
}

TEST_P(Rows, SwigluIsWithinAFewUnitsOfTheExactValue) {
  Random random(6);
  for (const float limit : {0.0F, 10.0F}) {
    for (const size_t count : kCounts) {
      const std::vector<float> gate = random.values(count, count % 2 == 0 ? 15 : 100);
      const std::vector<float> up = random.values(count, 15);
      std::vector<float> y = gate;
      table().swiglu(y.data(), up.data(), count, limit, 0.75F, y.data());
      for (size_t i = 0; i < count; ++i) {
        const double g = limit > 0 ? std::min<double>(gate[i], limit) : gate[i];
        const double u = limit > 0 ? std::clamp<double>(up[i], -limit, limit) : up[i];
        const double expected = g / (1 + std::exp(-g)) * u * 0.75;
        // The exponential is good to 2 units, then a sum, a quotient and two products. Below e^-88 binary32 has no
        // e^-g.
        ASSERT_NEAR(y[i], expected, std::fabs(expected) * 5 * 0x1p-23 + 1e-35) << gate[i] << " " << up[i];
      }
    }
  }
}

TEST_P(Rows, SwigluLetsNaNThrough) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> gate = {nan, 1, 1};
  const std::vector<float> up = {1, nan, 1};
  std::vector<float> y(3);
  table().swiglu(gate.data(), up.data(), 3, 10, 1, y.data());
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_TRUE(std::isnan(y[1]));
  EXPECT_FALSE(std::isnan(y[2]));
}

TEST_P(Rows, SwigluOfSpecialValuesIsOfTheReferencesKind) {
  Random random(12);
  constexpr size_t kCount = 27;
  for (const float special : kSpecialValues) {
    for (const float limit : {0.0F, 10.0F}) {
      std::vector<float> gate = random.values(kCount, 15);
      std::vector<float> up = random.values(kCount, 15);
      for (size_t i = 0; i < kCount; i += 3)
        gate[i] = special;
      for (size_t i = 0; i < kCount; i += 4)
        up[i] = special;
      std::vector<float> expected(kCount);
      reference_kernels().swiglu(gate.data(), up.data(), kCount, limit, 0.75F, expected.data());
      table().swiglu(gate.data(), up.data(), kCount, limit, 0.75F, gate.data());
      testing::expect_same_kind_and_near(gate, expected,
                                         [&](size_t i) { return std::fabs(expected[i]) * 8 * 0x1p-23F + 0x1p-148F; });
    }
  }
}

TEST_P(Rows, SoftmaxTermsAreWithinAFewUnitsOfTheExactValues) {
  Random random(8);
  for (const size_t count : kCounts) {
    // All negative in every third round, so that a tail filled up with zeros would show.
    for (const float shift : {0.0F, -200.0F, 30.0F}) {
      std::vector<float> x = random.values(count, 20);
      for (float& v : x)
        v += shift;
      const double largest = count == 0 ? 0 : *std::max_element(x.begin(), x.end());
      std::vector<float> terms = x;
      const float sum = table().softmax_terms(terms.data(), count, 0.125F);
      double expected_sum = 0;
      for (size_t i = 0; i < count; ++i) {
        const double expected = std::exp(0.125 * (x[i] - largest));
        // The exponent, up to 30, is off by half a unit of its own; then the exponential's 2 units.
        ASSERT_NEAR(terms[i], expected, expected * 12 * 0x1p-23) << i << " of " << count;
        expected_sum += expected;
      }
      ASSERT_NEAR(sum, expected_sum, expected_sum * 30 * 0x1p-23);
    }
  }
}

/// What stands beside a NaN or below it in a vector is as if it were not there; it shows in its own term and the sum.
TEST_P(Rows, SoftmaxTermsBesideSpecialValuesAreThoseOfTheReference) {
  Random random(13);
  for (const float special : kSpecialValues) {
    for (const size_t count : {1U, 2U, 8U, 16U, 21U, 64U, 100U}) {
      for (const size_t place : {size_t{0}, count / 2, count - 1}) {
        SCOPED_TRACE(::testing::Message() << special << " at " << place << " of " << count);
        std::vector<float> expected = random.values(count, 20);
        expected[place] = special;
        std::vector<float> actual = expected;
        const float expected_sum = reference_kernels().softmax_terms(expected.data(), count, 0.125F);
        const float sum = table().softmax_terms(actual.data(), count, 0.125F);
        testing::expect_same_kind_and_near(actual, expected, [&](size_t i) { return expected[i] * 12 * 0x1p-23F; });
        testing::expect_same_kind_and_near({sum}, {expected_sum}, [&](size_t) { return expected_sum * 30 * 0x1p-23F; });
        for (size_t i = 0; std::isnan(special) && i < count; ++i)
          ASSERT_EQ(std::isnan(actual[i]), i == place);
        // Of -inf alone there is no softmax.
        const bool is_nan = std::isnan(special) || special > 1 || (special < -1 && count == 1);
        EXPECT_EQ(std::isnan(sum), is_nan);
      }
    }
    std::vector<float> all(37, special);
    const float sum = table().softmax_terms(all.data(), all.size(), 0.125F);
    EXPECT_EQ(std::isfinite(sum), std::isfinite(special)) << special;
  }
}

TEST_P(Rows, SumsGiveTheReferencesBitsForAllKindsOfValues) {
  Random random(15);
  for (const size_t count : kCounts) {
    std::vector<float> expected(count);
    std::vector<float> x(count);
    for (size_t i = 0; i < count; ++i) {
      expected[i] = any_float(random);
      x[i] = any_float(random);
    }
    std::vector<float> actual = expected;
    reference_kernels().add(expected.data(), x.data(), count);
    table().add(actual.data(), x.data(), count);
    for (size_t i = 0; i < count; ++i)
      ASSERT_TRUE(same_bits(actual[i], expected[i])) << i << " of " << count;
  }
}

TEST_P(Rows, HyperConnectionsGiveTheReferencesBits) {
  Random random(7);
  for (const size_t streams : {1U, 2U, 4U, 8U}) {
    for (const size_t width : kCounts) {
      const std::vector<float> stream = random.values(streams * width);
      const std::vector<float> y = random.values(width);
      const std::vector<float> pre = random.values(streams);
      const std::vector<float> comb = random.values(streams * streams);
      std::vector<float> expected(width);
      std::vector<float> actual(width);
      reference_kernels().hc_collapse(stream.data(), pre.data(), streams, width, expected.data());
      table().hc_collapse(stream.data(), pre.data(), streams, width, actual.data());
      EXPECT_EQ(actual, expected) << streams << " of " << width;
      std::vector<float> expected_stream = stream;
      std::vector<float> actual_stream = stream;
      reference_kernels().hc_expand(expected_stream.data(), y.data(), pre.data(), comb.data(), streams, width);
      table().hc_expand(actual_stream.data(), y.data(), pre.data(), comb.data(), streams, width);
      EXPECT_EQ(actual_stream, expected_stream) << streams << " of " << width;
    }
  }
}

TEST_P(Rows, HyperConnectionsGiveTheReferencesBitsForAllKindsOfValues) {
  Random random(14);
  constexpr size_t kWidth = 203;
  for (const size_t streams : {1U, 4U, 8U}) {
    std::vector<float> stream(streams * kWidth);
    std::vector<float> y(kWidth);
    // Most columns have ordinary values only, or all would be NaN.
    for (float& v : stream)
      v = random.below(8) == 0 ? any_float(random) : random.value();
    for (float& v : y)
      v = random.below(8) == 0 ? any_float(random) : random.value();
    std::vector<float> pre = random.values(streams);
    std::vector<float> comb = random.values(streams * streams);
    for (const float factor : {0.0F, 0x1p-130F, std::numeric_limits<float>::infinity()}) {
      pre[streams / 2] = factor;
      comb[streams / 2] = factor;
      std::vector<float> expected(kWidth);
      std::vector<float> actual(kWidth);
      reference_kernels().hc_collapse(stream.data(), pre.data(), streams, kWidth, expected.data());
      table().hc_collapse(stream.data(), pre.data(), streams, kWidth, actual.data());
      for (size_t i = 0; i < kWidth; ++i)
        ASSERT_TRUE(same_bits(actual[i], expected[i])) << streams << " at " << i;
      std::vector<float> expected_stream = stream;
      std::vector<float> actual_stream = stream;
      reference_kernels().hc_expand(expected_stream.data(), y.data(), pre.data(), comb.data(), streams, kWidth);
      table().hc_expand(actual_stream.data(), y.data(), pre.data(), comb.data(), streams, kWidth);
      for (size_t i = 0; i < stream.size(); ++i)
        ASSERT_TRUE(same_bits(actual_stream[i], expected_stream[i])) << streams << " at " << i;
    }
  }
}

TEST_P(Rows, NothingIsReadOrWrittenWhereThereIsNothing) {
  table().rms_norm(nullptr, nullptr, 0, 1e-20F, nullptr);
  table().quantise_fp8(nullptr, 0);
  table().round_bf16(nullptr, 0);
  table().rope(nullptr, nullptr, nullptr, 0, 1);
  table().swiglu(nullptr, nullptr, 0, 10, 1, nullptr);
  EXPECT_EQ(table().softmax_terms(nullptr, 0, 1), 0.0F);
  const Above found = table().collect_above({.begin = 5, .end = 5, .room = kAboveBlock});
  EXPECT_EQ(found.count, 0U);
  EXPECT_EQ(found.next, 5U);
  table().add(nullptr, nullptr, 0);
  const float factors[4] = {1, 1, 1, 1};
  table().hc_collapse(nullptr, factors, 2, 0, nullptr);
  table().hc_expand(nullptr, nullptr, factors, factors, 2, 0);
}

/// Dense and rare ones, from the middle on and to any end, with NaN and both infinities, and where room runs out.
TEST_P(Rows, ValuesAboveAreThoseOfTheReference) {
  Random random(9);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const size_t count : {0U, 1U, 63U, 64U, 65U, 200U, 1000U}) {
    std::vector<float> x = random.values(count);
    for (size_t i = 3; i < count; i += 41)
      x[i] = i % 2 == 0 ? kInfinity : std::numeric_limits<float>::quiet_NaN();
    for (const float above : {-kInfinity, -2.0F, 0.0F, 0.98F, kInfinity}) {
      for (const size_t room : {kAboveBlock, kAboveBlock + 20, size_t{1100}}) {
        const size_t begin = count / 3;
        std::vector<float> values[2];
        std::vector<uint32_t> places[2];
        Above found[2];
        const KernelTable* const tables[2] = {&reference_kernels(), &table()};
        for (size_t t = 0; t < 2; ++t) {
          values[t].resize(room);
          places[t].resize(room);
          found[t] = tables[t]->collect_above({.x = x.data(),
                                               .begin = begin,
                                               .end = count,
                                               .above = above,
                                               .values = values[t].data(),
                                               .places = places[t].data(),
                                               .room = room});
        }
        EXPECT_EQ(found[1].count, found[0].count);
        EXPECT_EQ(found[1].next, found[0].next);
        EXPECT_EQ(values[1], values[0]);
        EXPECT_EQ(places[1], places[0]);
        size_t expected = 0;
        for (size_t i = begin; i < found[0].next; ++i)
          expected += x[i] > above ? 1 : 0;
        EXPECT_EQ(found[0].count, expected);
      }
    }
  }
}

}  // namespace
}  // namespace tidepool::kernels
