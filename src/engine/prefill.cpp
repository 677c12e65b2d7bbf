#include "engine/prefill.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"

namespace tidepool {

namespace {

/// Decoder rows before the end of a prompt that `replay` asks for.
int64_t replay_rows(const KvLayout& layout, Replay replay, int64_t prompt_end) {
  switch (replay) {
    case Replay::kBounded: return layout.window;
    case Replay::kExact: return layout.decoder_halo() + 1;
    case Replay::kFull: return prompt_end;
  }
  return prompt_end;
}

}  // namespace

Replay parse_replay(std::string_view name) {
  if (name == "bounded") return Replay::kBounded;
  if (name == "exact") return Replay::kExact;
  if (name == "full") return Replay::kFull;
  throw Error(ErrorCode::kInvalidArgument, fmt::format("replay \"{}\" is not known; use bounded, exact or full", name));
}

int64_t replay_begin(const Model& model, const SequenceState& state, int64_t prompt_end, Replay replay) {
  return std::max(state.length(), prompt_end - replay_rows(*model.kv_layout(), replay, prompt_end));
}

void set_replay(KvCache::Query& query, Replay replay) {
  query.exact_replay = replay != Replay::kBounded;
  query.exact_only = replay != Replay::kBounded;
}

bool prefill(const Model& model, const Runtime& runtime, Arena& arena, SequenceState& state,
             std::span<const InputToken> tokens, const PrefillOptions& options, const PrefillProgress& progress) {
  TIDEPOOL_CHECK(!tokens.empty() && options.chunk > 0, "a prefill has tokens and a chunk size");
  const int64_t end = state.length() + static_cast<int64_t>(tokens.size());
  const int64_t decoder_from = replay_begin(model, state, end, options.replay);
  size_t done = 0;
  while (done < tokens.size()) {
    const Arena::Scope scope(arena);
    const size_t count = std::min(options.chunk, tokens.size() - done);
    const int64_t chunk_end = state.length() + static_cast<int64_t>(count);
    const int64_t decoder_rows = std::clamp(chunk_end - decoder_from, int64_t{0}, static_cast<int64_t>(count));
    ForwardRequest request{&state, tokens.subspan(done, count), decoder_from, 0};
    if (options.logits == PrefillOptions::Logits::kAll) request.logits_rows = static_cast<size_t>(decoder_rows);
    if (options.logits == PrefillOptions::Logits::kLast && chunk_end == end) request.logits_rows = 1;
    if (options.images != nullptr) request.images = options.images->rows(state.length(), chunk_end);
    const Span2d<const float> logits = forward(model, runtime, arena, {&request, 1}, options.probe);
    done += count;
    if (!progress(chunk_end - static_cast<int64_t>(request.logits_rows), logits, done)) return done == tokens.size();
  }
  return true;
}

}  // namespace tidepool
