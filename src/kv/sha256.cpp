#include "kv/sha256.h"

#include <openssl/evp.h>

#include "base/check.h"

namespace tidepool {

struct FieldHasher::Context {
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> evp{EVP_MD_CTX_new()};
};

FieldHasher::FieldHasher(std::string_view domain) : context_(std::make_unique<Context>()) {
  TIDEPOOL_CHECK(context_->evp && EVP_DigestInit_ex(context_->evp.get(), EVP_sha256(), nullptr) == 1,
                 "libcrypto has SHA-256");
  add(domain);
}

FieldHasher::~FieldHasher() = default;

void FieldHasher::update(const void* data, size_t bytes) {
  TIDEPOOL_CHECK(EVP_DigestUpdate(context_->evp.get(), data, bytes) == 1, "hashing memory cannot fail");
}

FieldHasher& FieldHasher::add(int64_t value) {
  update(&value, sizeof(value));
  return *this;
}

FieldHasher& FieldHasher::add(std::span<const std::byte> bytes) {
  add(static_cast<int64_t>(bytes.size()));
  update(bytes.data(), bytes.size());
  return *this;
}

FieldHasher& FieldHasher::add(std::string_view text) {
  return add(std::as_bytes(std::span(text)));
}

Digest FieldHasher::finish() {
  Digest digest;
  unsigned length = 0;
  TIDEPOOL_CHECK(
      EVP_DigestFinal_ex(context_->evp.get(), reinterpret_cast<unsigned char*>(digest.data()), &length) == 1 &&
          length == digest.size(),
      "SHA-256 gives 32 bytes");
  return digest;
}

Digest sha256(std::span<const std::byte> bytes) {
  Digest digest;
  unsigned length = 0;
  TIDEPOOL_CHECK(EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()), &length,
                            EVP_sha256(), nullptr) == 1,
                 "hashing memory cannot fail");
  return digest;
}

}  // namespace tidepool
