#include "server/id_source.h"

#include <string_view>

namespace tidepool {
namespace {

constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
constexpr int kSeedBits = 53;

std::mt19937_64 make_random() {
  std::random_device device;
  std::seed_seq words{device(), device(), device(), device(), device(), device(), device(), device()};
  return std::mt19937_64(words);
}

}  // namespace

IdSource::IdSource() : random_(make_random()) {}

std::string IdSource::id(size_t letters) {
  const std::lock_guard lock(mutex_);
  std::uniform_int_distribution<size_t> letter(0, kLetters.size() - 1);
  std::string text;
  for (size_t i = 0; i < letters; ++i)
    text += kLetters[letter(random_)];
  return text;
}

uint64_t IdSource::seed() {
  const std::lock_guard lock(mutex_);
  return random_() >> (64 - kSeedBits);
}

}  // namespace tidepool
