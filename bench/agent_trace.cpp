#include "bench/agent_trace.h"

#include <algorithm>
#include <memory>
#include <random>
#include <utility>

#include "kv/disk_store.h"
#include "model/fingerprint.h"
#include "session/conversation.h"

namespace tidepool::bench {
namespace {

using Ids = std::vector<int32_t>;

constexpr int kMainTurns = 14;
constexpr int kRestartBefore = 7;
constexpr int kEditEvery = 5;
constexpr size_t kEditedTokens = 4;
constexpr int64_t kAnswerTokens = 12;
/// What every session but the titles begins with: instructions and tools.
constexpr size_t kHeaderTokens = 200;

class AgentTrace {
 public:
  AgentTrace(const LoadedModel& model, std::filesystem::path folder) : model_(model), folder_(std::move(folder)) {
    result_.token_bytes = static_cast<int64_t>(model.model().kv_layout()->block_bytes) / kBlockTokens;
    start_program();
  }

  AgentTraceResult run() {
    Ids main = make_ids(kHeaderTokens);
    const Ids header = main;
    Ids agents[2];
    for (int turn = 0; turn < kMainTurns; ++turn) {
      if (turn == kRestartBefore) {
        stop_program();
        start_program();
      }
      if (turn % kEditEvery == kEditEvery - 1) edit(main);
      append(main, make_ids(20 + random_() % 30));  // a question, or what a tool found
      ask("main", main);
      if (turn % 6 == 1) ask_title(header);
      for (int agent = 0; agent < 2; ++agent) {
        const int age = turn - (3 + 4 * agent);
        if (age < 0 || age > 2) continue;
        if (age == 0) agents[agent] = header;
        append(agents[agent], make_ids(30 + random_() % 40));
        ask(agent == 0 ? "agent 1" : "agent 2", agents[agent]);
      }
    }
    stop_program();
    return std::move(result_);
  }

 private:
  void start_program() {
    DiskStoreOptions store;
    store.folder = folder_;
    store_ = open_disk_store(store);
    KvCacheOptions options;
    options.model = model_fingerprint(model_.model());
    options.ram_bytes = size_t{64} << 20;
    options.snapshot_ram_bytes = size_t{64} << 20;
    options.store = store_;
    cache_ = std::make_unique<KvCache>(model_.model().kv_layout(), std::move(options));
    conversation_ = std::make_unique<Conversation>(model_, *cache_);
  }

  /// Snapshots are written at the end only, so what is written last is theirs.
  void stop_program() {
    conversation_.reset();
    store_->flush();
    const BlockStore::Stats blocks = store_->stats();
    cache_.reset();
    const BlockStore::Stats all = store_->stats();
    result_.written_bytes += all.written_bytes;
    result_.snapshot_bytes += all.written_bytes - blocks.written_bytes;
    result_.snapshots = all.snapshots;
    store_.reset();
  }

  Ids make_ids(size_t count) {
    Ids ids(count);
    for (int32_t& id : ids)
      id = static_cast<int32_t>(3 + random_() % 490);
    return ids;
  }
  static void append(Ids& ids, const Ids& more) { ids.insert(ids.end(), more.begin(), more.end()); }

  /// The client trims the end of the last answer and writes something else there.
  void edit(Ids& context) {
    context.resize(context.size() - kEditedTokens);
    append(context, make_ids(2));
  }

  void ask_title(const Ids& header) {
    Ids prompt(header.begin(), header.begin() + 40);
    append(prompt, make_ids(30));
    ask("title", prompt);
  }

  [[nodiscard]] int64_t known_tokens(const Ids& prompt) const {
    int64_t most = 0;
    for (const Ids& text : texts_) {
      const auto end = std::ranges::mismatch(prompt, text);
      most = std::max<int64_t>(most, end.in1 - prompt.begin());
    }
    return most;
  }

  /// One turn; the answer is appended to `context`.
  void ask(const std::string& session, Ids& context) {
    TurnRequest request;
    request.prompt = context;
    request.output.kind = OutputFormat::Kind::kIds;
    request.generation.sampling.temperature = 0;
    request.generation.max_tokens = kAnswerTokens;
    const TurnResult answer = conversation_->run(request);
    AgentTraceTurn turn;
    turn.session = session;
    turn.cache = answer.cache;
    turn.new_tokens = answer.cache.prompt_tokens - known_tokens(context);
    turn.read_tokens = answer.cache.prompt_tokens - answer.cache.hit_tokens + answer.cache.replayed_tokens;
    turn.output_tokens = std::ssize(answer.tokens);
    for (const SampledToken& token : answer.tokens)
      context.push_back(token.id);
    // The last token of an answer is in no state: it was written, not read.
    texts_.emplace_back(context.begin(), context.end() - 1);
    result_.turns.push_back(std::move(turn));
  }

  const LoadedModel& model_;
  std::filesystem::path folder_;
  std::shared_ptr<BlockStore> store_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Conversation> conversation_;
  std::mt19937 random_{2026};
  std::vector<Ids> texts_;  ///< what was read so far, each request with its answer
  AgentTraceResult result_;
};

}  // namespace

AgentTraceResult run_agent_trace(const LoadedModel& model, const std::filesystem::path& folder) {
  return AgentTrace(model, folder).run();
}

}  // namespace tidepool::bench
