#include "kernels/kernel_table.h"

#include <array>
#include <string>

#include "base/error.h"

namespace tidepool::kernels {
namespace {

/// Every table of this build, best first, with whether this processor and its operating system can run it.
struct Candidate {
  const KernelTable* table;
  bool is_runnable;
};

std::array<Candidate, 1> all_candidates() {
  return {Candidate{&reference_kernels(), true}};
}

/// Filled once, at first use; immutable afterwards. (The style page's exception for the kernel table.)
struct Available {
  std::array<const KernelTable*, std::tuple_size_v<decltype(all_candidates())>> tables{};
  size_t count = 0;
};

const Available& available() {
  static const Available result = [] {
    Available found;
    for (const Candidate& candidate : all_candidates()) {
      if (candidate.is_runnable) found.tables[found.count++] = candidate.table;
    }
    return found;
  }();
  return result;
}

}  // namespace

std::span<const KernelTable* const> available_kernels() {
  return {available().tables.data(), available().count};
}

const KernelTable& select_kernels(std::string_view name) {
  if (name == "auto") return *available_kernels().front();
  std::string names;
  for (const KernelTable* table : available_kernels()) {
    if (table->name == name) return *table;
    names += std::string(names.empty() ? "" : ", ") + std::string(table->name);
  }
  throw Error(ErrorCode::kUnsupported, "kernels '" + std::string(name) + "': this processor can run " + names +
                                           "; choose one of these, or 'auto' for the first");
}

}  // namespace tidepool::kernels
