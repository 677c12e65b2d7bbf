#pragma once

#include <array>
#include <span>
#include <string_view>

namespace tidepool {

/// Something that Tidepool can do, what it takes, and how people ask for it.
struct HelpFact {
  /// The option, command or path: what an answer must name first. It stands in docs/commands.md or docs/api.md.
  std::string_view key;
  /// What the question is about, as a noun phrase.
  std::string_view topic;
  std::string_view answer;
  /// Completes "How do I …?". The last one is only asked in held-out questions.
  std::array<std::string_view, 28> wishes;
};

[[nodiscard]] std::span<const HelpFact> help_facts();

}  // namespace tidepool
