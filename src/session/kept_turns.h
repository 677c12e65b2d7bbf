#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/chat_encoding.h"
#include "text/completion_parser.h"

namespace tidepool {

/// An assistant turn as the model wrote it.
struct KeptTurn {
  /// All ids of the output, without the one that closes the turn; a calls block that the prompt opened belongs to it.
  std::vector<int32_t> ids;
  /// Whether the output began inside the reasoning.
  bool has_reasoning = false;
  /// Where content and calls begin among the ids; nothing when no token marks that place.
  std::optional<size_t> body;
  /// The reader did not see the output to its end (a stop string was cut out), so only its reasoning can be used.
  bool is_cut = false;
  std::string reasoning;            ///< its text, as the client got it
  uint64_t prompt_fingerprint = 0;  ///< fingerprint of the prompt that the turn answers
};

/// The same number for the same ids; 64 bits that tell the prompts apart whose answers look alike. A prompt's ids may
/// come in pieces.
class PromptFingerprint {
 public:
  void add(std::span<const int32_t> ids);
  /// Of all ids so far.
  [[nodiscard]] uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325;  // FNV-1a
};
[[nodiscard]] uint64_t prompt_fingerprint(std::span<const int32_t> ids);

/// One text for all ways in which a client may send the same turn back: outer white space of the content does not
/// count, nor whether it comes in blocks; of the calls count names and arguments, these as JSON values: whatever the
/// order of keys, spacing, escapes, and notation of numbers. Reasoning and ids of calls do not count. Empty for a turn
/// without content and calls.
[[nodiscard]] std::string canonical_turn(const ChatMessage& message);
[[nodiscard]] std::string canonical_turn(const Completion& completion);

/// What the engine itself wrote lately, to be found again when a client sends it back. Bounded; the turns that were not
/// used for longest go first. Thread-safe.
class KeptTurns {
 public:
  explicit KeptTurns(size_t bytes_max) : bytes_max_(bytes_max) {}

  /// `salt` isolates tenants; `turn_text` is canonical_turn() of the turn.
  void keep(std::string_view salt, const std::string& turn_text, KeptTurn turn);

  struct Question {
    std::string_view salt{};
    std::string turn_text{};          ///< canonical
    bool has_reasoning = false;       ///< the template keeps reasoning at this place
    std::string_view reasoning{};     ///< as the client sent it, may be empty
    uint64_t prompt_fingerprint = 0;  ///< of all ids before the turn
  };
  /// The part of a prompt that a kept turn can stand for.
  struct Answer {
    enum class Part : uint8_t { kWhole, kReasoning, kBody } part = Part::kWhole;
    std::vector<int32_t> ids;
  };
  /// The turn that fits best. Its reasoning is given only when the client sends just that reasoning, or sends none and
  /// the turn answered just this prompt; of several such turns, first one that answered this prompt, then the newest.
  /// Of all others only content and calls are given: what another conversation thought must not show in this one.
  [[nodiscard]] std::optional<Answer> find(const Question& question);

  struct Stats {
    size_t turns = 0;
    size_t bytes = 0;
  };
  [[nodiscard]] Stats stats() const;

 private:
  struct Entry {
    std::string key;
    KeptTurn turn;
  };
  using Entries = std::list<Entry>;
  [[nodiscard]] static size_t bytes_of(const Entry& entry);
  void drop(Entries::iterator entry);

  const size_t bytes_max_;
  mutable std::mutex mutex_;
  // All below under the mutex.
  Entries entries_;  ///< last used first
  std::unordered_map<std::string, std::vector<Entries::iterator>> by_key_;
  size_t bytes_ = 0;
};

}  // namespace tidepool
