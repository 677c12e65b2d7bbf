#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "text/grammar_json.h"

namespace tidepool {

namespace {

constexpr Decimal kZero{};

Decimal largest() {
  return {power_of_ten(kIntegerDigitsMax) - 1, power_of_ten(kFractionDigitsMax) - 1};
}

Decimal negated(Decimal value) {
  return {-value.whole, -value.fraction};
}

std::string fraction_text(int64_t fraction) {
  std::string text = std::to_string(fraction);
  return std::string(static_cast<size_t>(kFractionDigitsMax) - text.size(), '0') + text;
}

/// Numbers without sign from `least` to `most`, digit by digit. As long as the digits written are those of a bound, the
/// next one is held to that bound ("tight").
class MagnitudeWriter {
 public:
  struct Range {
    Decimal least;
    Decimal most;
    bool excludes_least = false;
    bool excludes_most = false;
    int fraction_digits = 0;
    uint32_t multiple_of = 1;
  };

  MagnitudeWriter(RuleNfa& nfa, const Range& range, uint32_t to) : nfa_(nfa), range_(range), to_(to) {
    low_ = std::to_string(range.least.whole);
    high_ = std::to_string(range.most.whole);
    low_fraction_ = fraction_text(range.least.fraction);
    high_fraction_ = fraction_text(range.most.fraction);
  }

  void add(uint32_t from) {
    if (range_.least > range_.most) return;
    for (size_t length = low_.size(); length <= high_.size(); ++length)
      add_digits(from, {length, length, length == low_.size(), length == high_.size(), 0});
  }

 private:
  /// A place in the whole part.
  struct Place {
    size_t length = 0;     ///< digits of the whole part; 0 when neither bound is tight, as it does not matter then
    size_t remaining = 0;  ///< digits to come
    bool is_low_tight = false;
    bool is_high_tight = false;
    uint32_t residue = 0;                                           ///< of what is written, modulo multiple_of
    friend auto operator<=>(const Place&, const Place&) = default;  // NOLINT(*-nullptr,*-conversion)
  };

  uint32_t state_of(Place place) {
    if (!place.is_low_tight && !place.is_high_tight) place.length = 0;
    const auto [known, is_new] = places_.try_emplace(place, 0);
    if (!is_new) return known->second;
    const uint32_t state = nfa_.add_state();
    known->second = state;
    if (place.remaining > 0) {
      add_digits(state, place);
      return state;
    }
    if (place.residue == 0 && may_stop(0, place.is_low_tight, place.is_high_tight)) nfa_.add_empty(state, to_);
    if (range_.fraction_digits > 0)
      nfa_.add_byte(state, '.', fraction_state(0, place.is_low_tight, place.is_high_tight));
    return state;
  }

  void add_digits(uint32_t from, const Place& place) {
    const size_t index = place.length - place.remaining;
    const bool is_first = place.remaining == place.length;
    const char low = place.is_low_tight ? low_[index] : is_first && place.length > 1 ? '1' : '0';
    const char high = place.is_high_tight ? high_[index] : '9';
    for (char digit = low; digit <= high; ++digit) {
      const uint32_t residue = (place.residue * 10 + static_cast<uint32_t>(digit - '0')) % range_.multiple_of;
      const Place next{place.length, place.remaining - 1, place.is_low_tight && digit == low,
                       place.is_high_tight && digit == high, residue};
      nfa_.add_byte(from, digit, state_of(next));
    }
  }

  /// Whether the number may end behind so many digits of its fraction.
  [[nodiscard]] bool may_stop(size_t digits, bool is_low_tight, bool is_high_tight) const {
    const auto is_rest_zero = [digits](const std::string& fraction) {
      return fraction.find_first_not_of('0', digits) == std::string::npos;
    };
    if (is_low_tight && (range_.excludes_least || !is_rest_zero(low_fraction_))) return false;
    return !is_high_tight || !range_.excludes_most || !is_rest_zero(high_fraction_);
  }

  uint32_t fraction_state(size_t digits, bool is_low_tight, bool is_high_tight) {
    const auto [known, is_new] = fractions_.try_emplace({digits, is_low_tight, is_high_tight}, 0);
    if (!is_new) return known->second;
    const uint32_t state = nfa_.add_state();
    known->second = state;
    if (digits > 0 && may_stop(digits, is_low_tight, is_high_tight)) nfa_.add_empty(state, to_);
    if (digits == static_cast<size_t>(range_.fraction_digits)) return state;
    const char low = is_low_tight ? low_fraction_[digits] : '0';
    const char high = is_high_tight ? high_fraction_[digits] : '9';
    for (char digit = low; digit <= high; ++digit)
      nfa_.add_byte(state, digit,
                    fraction_state(digits + 1, is_low_tight && digit == low, is_high_tight && digit == high));
    return state;
  }

  RuleNfa& nfa_;
  Range range_;
  uint32_t to_;
  std::string low_;
  std::string high_;
  std::string low_fraction_;
  std::string high_fraction_;
  std::map<Place, uint32_t> places_;
  std::map<std::tuple<size_t, bool, bool>, uint32_t> fractions_;
};

uint32_t add_digit_run(RuleNfa& nfa, uint32_t from, int count_max, uint32_t to) {
  for (int i = 0; i < count_max; ++i) {
    const uint32_t next = nfa.add_state();
    nfa.add_edge(from, '0', '9', next);
    nfa.add_empty(next, to);
    from = next;
  }
  return from;
}

/// Any number: sign, whole part, fraction, exponent of up to two digits.
void add_any_number(RuleNfa& nfa, uint32_t from, uint32_t to) {
  const uint32_t whole = nfa.add_state();
  nfa.add_empty(from, whole);
  nfa.add_byte(from, '-', whole);
  const uint32_t behind_whole = nfa.add_state();
  nfa.add_byte(whole, '0', behind_whole);
  const uint32_t more = nfa.add_state();
  nfa.add_edge(whole, '1', '9', more);
  nfa.add_empty(more, behind_whole);
  (void)add_digit_run(nfa, more, kIntegerDigitsMax - 1, behind_whole);
  const uint32_t behind_fraction = nfa.add_state();
  const uint32_t point = nfa.add_state();
  nfa.add_empty(behind_whole, behind_fraction);
  nfa.add_byte(behind_whole, '.', point);
  (void)add_digit_run(nfa, point, kFractionDigitsMax, behind_fraction);
  nfa.add_empty(behind_fraction, to);
  const uint32_t exponent = nfa.add_state();
  nfa.add_byte(behind_fraction, 'e', exponent);
  nfa.add_byte(behind_fraction, 'E', exponent);
  const uint32_t exponent_digits = nfa.add_state();
  nfa.add_empty(exponent, exponent_digits);
  nfa.add_byte(exponent, '+', exponent_digits);
  nfa.add_byte(exponent, '-', exponent_digits);
  (void)add_digit_run(nfa, exponent_digits, 2, to);
}

/// So many digits behind the point that whole part and fraction near a bound have at most 15 together: a binary64 tells
/// those apart.
int fraction_digits(const NumberSpec& number) {
  if (number.is_integer) return 0;
  int64_t widest = 0;
  for (const std::optional<Decimal>& bound : {number.least, number.most}) {
    if (!bound || *bound > largest() || *bound < negated(largest())) continue;
    widest = std::max({widest, bound->whole, -bound->whole});
  }
  const int digits = static_cast<int>(std::to_string(widest).size());
  return std::clamp(kFractionDigitsMax - digits, 0, static_cast<int>(number.fraction_digits));
}

}  // namespace

void add_number(RuleNfa& nfa, uint32_t from, const NumberSpec& number, uint32_t to) {
  const bool is_any = !number.is_integer && !number.least && !number.most &&
                      number.fraction_digits == static_cast<uint32_t>(kFractionDigitsMax);
  if (is_any) {
    add_any_number(nfa, from, to);
    return;
  }
  const Decimal least = number.least.value_or(negated(largest()));
  const Decimal most = number.most.value_or(largest());
  MagnitudeWriter::Range range;
  range.fraction_digits = fraction_digits(number);
  range.multiple_of = number.multiple_of;
  if (most >= kZero) {
    range.least = std::max(least, kZero);
    range.excludes_least = number.excludes_least && least >= kZero;
    range.most = std::min(most, largest());
    range.excludes_most = number.excludes_most && most <= largest();
    MagnitudeWriter(nfa, range, to).add(from);
  }
  if (least < kZero) {
    // "-0" is no integer anyone writes.
    const Decimal smallest = number.is_integer ? Decimal{1, 0} : kZero;
    range.least = std::max(negated(most), smallest);
    range.excludes_least = number.excludes_most && negated(most) >= smallest;
    range.most = std::min(negated(least), largest());
    range.excludes_most = number.excludes_least && negated(least) <= largest();
    const uint32_t sign = nfa.add_state();
    nfa.add_byte(from, '-', sign);
    MagnitudeWriter(nfa, range, to).add(sign);
  }
}

}  // namespace tidepool
