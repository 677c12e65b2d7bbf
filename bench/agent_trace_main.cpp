// Plays the agent trace on a small model and says, turn by turn, what the KV cache gave.
//   agent_trace MODEL [--json]      MODEL: tests/golden/ckpt

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>

#include "base/temp_folder.h"
#include "bench/agent_trace.h"

namespace {

using tidepool::bench::AgentTraceResult;
using tidepool::bench::AgentTraceTurn;

void print_table(const AgentTraceResult& result) {
  fmt::print("{:<10}{:>8}{:>8}{:>8}{:>8}{:>8}  {:<14}{}\n", "session", "prompt", "new", "hit", "read", "output", "tier",
             "the match ended");
  for (const AgentTraceTurn& turn : result.turns) {
    fmt::print("{:<10}{:>8}{:>8}{:>8}{:>8}{:>8}  {:<14}{}\n", turn.session, turn.cache.prompt_tokens, turn.new_tokens,
               turn.cache.hit_tokens, turn.read_tokens, turn.output_tokens, tidepool::cache_tier_name(turn.cache.tier),
               tidepool::match_end_name(turn.cache.end));
  }
  fmt::print("written to disk: {} bytes, of which {} snapshots {} bytes; {} bytes a token of blocks\n",
             result.written_bytes, result.snapshots, result.snapshot_bytes, result.token_bytes);
}

void print_json(const AgentTraceResult& result) {
  nlohmann::ordered_json turns = nlohmann::ordered_json::array();
  for (const AgentTraceTurn& turn : result.turns) {
    turns.push_back({{"session", turn.session},
                     {"prompt_tokens", turn.cache.prompt_tokens},
                     {"new_tokens", turn.new_tokens},
                     {"hit_tokens", turn.cache.hit_tokens},
                     {"read_tokens", turn.read_tokens},
                     {"output_tokens", turn.output_tokens},
                     {"tier", tidepool::cache_tier_name(turn.cache.tier)},
                     {"end", tidepool::match_end_name(turn.cache.end)}});
  }
  const nlohmann::ordered_json report = {{"turns", turns},
                                         {"token_bytes", result.token_bytes},
                                         {"written_bytes", result.written_bytes},
                                         {"snapshot_bytes", result.snapshot_bytes},
                                         {"snapshots", result.snapshots}};
  fmt::print("{}\n", report.dump(2));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const bool wants_json = argc == 3 && std::string(argv[2]) == "--json";
    if (argc != 2 && !wants_json) {
      fmt::print(stderr, "usage: agent_trace MODEL [--json]\n");
      return 2;
    }
    tidepool::LoadOptions options;
    options.folder = argv[1];
    const std::unique_ptr<tidepool::LoadedModel> model = tidepool::LoadedModel::load(options);
    const tidepool::TempFolder folder;
    const AgentTraceResult result = tidepool::bench::run_agent_trace(*model, folder / "kv");
    wants_json ? print_json(result) : print_table(result);
  } catch (const std::exception& error) {
    fmt::print(stderr, "agent_trace: {}\n", error.what());
    return 1;
  }
  return 0;
}
