#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "base/arena.h"
#include "base/error.h"
#include "base/temp_folder.h"
#include "bench/kv_storage.h"
#include "bench/suite_internal.h"
#include "engine/prefill.h"
#include "kv/kv_cache.h"
#include "model/model.h"

namespace tidepool::bench {
namespace {

constexpr int64_t kTokens = 100'000;
constexpr int64_t kTurnTokens = 4096;  ///< of one session before the next writes
constexpr uint64_t kSessions = 4;

std::vector<InputToken> session_tokens(uint64_t session, int64_t count) {
  std::vector<InputToken> tokens(static_cast<size_t>(count));
  uint64_t state = session * 0x9e3779b97f4a7c15U + 99;
  for (InputToken& token : tokens) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    token.id = static_cast<int32_t>((state >> 33) % 129280);
  }
  return tokens;
}

/// What the measurements share: shapes, and blocks that are copied over and over.
struct KvBench {
  explicit KvBench(std::filesystem::path storage_in)
      : storage(std::move(storage_in)), layout(released_layout()), blocks(synthetic_blocks(*layout, 16)) {
    std::error_code error;
    std::filesystem::create_directories(storage, error);
    if (!std::filesystem::is_directory(storage)) {
      throw Error(ErrorCode::kIo, fmt::format("{}: cannot be made; name a folder with --kv-dir", storage.string()));
    }
  }

  /// Appends `count` tokens of `session` to `state`, with their KV.
  void extend(SequenceState& state, uint64_t session, int64_t count) const {
    const std::vector<InputToken> tokens = session_tokens(session, state.length() + count);
    const size_t first = state.blocks().size();
    state.append(std::span(tokens).subspan(static_cast<size_t>(state.length())));
    for (size_t i = first; i < state.blocks().size(); ++i) {
      const KvBlock& from = *blocks[i % blocks.size()];
      std::memcpy(state.blocks()[i]->data(), from.data(), from.size());
    }
  }
  [[nodiscard]] DiskStoreOptions store_options(const TempFolder& folder) const {
    DiskStoreOptions options;
    options.folder = folder / "kv";
    options.layout = layout;
    return options;
  }
  [[nodiscard]] std::unique_ptr<KvCache> open_cache(const DiskStoreOptions* store) const {
    KvCacheOptions options;
    options.ram_bytes = size_t{2} << 30;
    if (store != nullptr) options.store = open_disk_store(*store);
    return std::make_unique<KvCache>(layout, std::move(options));
  }
  /// Sessions write by turns, as they do in a server.
  void write_sessions(const DiskStoreOptions& options, uint64_t sessions) const {
    const std::unique_ptr<KvCache> cache = open_cache(&options);
    std::vector<SequenceState> states;
    states.reserve(sessions);
    for (uint64_t session = 0; session < sessions; ++session)
      states.emplace_back(layout);
    for (int64_t at = 0; at < kTokens; at += kTurnTokens) {
      for (uint64_t session = 0; session < sessions; ++session) {
        extend(states[session], session, std::min(kTurnTokens, kTokens - at));
        cache->publish(states[session], {}, "", nullptr);
      }
    }
  }
  /// Seconds until a prompt of `session` has its KV again.
  [[nodiscard]] double resume_seconds(KvCache& cache, uint64_t session) const {
    KvCache::Query query;
    const std::vector<InputToken> tokens = session_tokens(session, kTokens);
    query.text.tokens = tokens;
    int64_t hits = 0;
    const double seconds = seconds_of([&] { hits = cache.resume(query).report.hit_tokens; });
    if (hits != kTokens / kBlockTokens * kBlockTokens) {
      throw Error(ErrorCode::kCorrupt, fmt::format("only {} of {} tokens came back", hits, kTokens));
    }
    return seconds;
  }

  std::filesystem::path storage;
  std::shared_ptr<const KvLayout> layout;
  std::vector<std::shared_ptr<const KvBlock>> blocks;
};

/// A figure that should not be above `bound`.
Result bounded(std::string shape, double value, std::string unit, double bound) {
  Result result;
  result.shape = std::move(shape);
  result.median = value;
  result.unit = std::move(unit);
  result.limit = "bound";
  result.limit_value = bound;
  result.share = bound / value;
  return result;
}

Result resident_bytes_per_token(const KvBench& bench) {
  SequenceState state(bench.layout);
  const size_t empty = state.bytes();
  const uint64_t before = resident_bytes();
  constexpr int64_t kWhole = kTokens / kBlockTokens * kBlockTokens;
  bench.extend(state, 0, kWhole);
  const auto resident = static_cast<double>(resident_bytes() - before) / static_cast<double>(kWhole);
  size_t kv_bytes = 0;
  for (const std::shared_ptr<KvBlock>& block : state.blocks())
    kv_bytes += block->size();
  return bounded(fmt::format("{} tokens; the process grew by {:.0f} a token, ids and allocator included; {:.2f} MB of "
                             "windows beside it",
                             kWhole, resident, static_cast<double>(empty) / 1e6),
                 static_cast<double>(kv_bytes) / static_cast<double>(kWhole), "bytes", 890);
}

Result disk_bytes_per_token(const KvBench& bench, bool compresses, double bound) {
  const TempFolder folder(bench.storage);
  DiskStoreOptions options = bench.store_options(folder);
  options.compresses = compresses;
  bench.write_sessions(options, 1);
  const int64_t tokens = kTokens / kBlockTokens * kBlockTokens;
  return bounded(fmt::format("all files of a store with {} blocks of normal values", kTokens / kBlockTokens),
                 static_cast<double>(folder_bytes(options.folder)) / static_cast<double>(tokens), "bytes", bound);
}

Result resume_100k_disk(const KvBench& bench, bool compresses) {
  constexpr int kRounds = 9;
  const TempFolder folder(bench.storage);
  DiskStoreOptions options = bench.store_options(folder);
  options.compresses = compresses;
  bench.write_sessions(options, kSessions);
  const uint64_t session_bytes = folder_bytes(options.folder) / kSessions;
  const RawFile raw(folder / "raw", session_bytes);
  std::vector<double> seconds;
  std::vector<double> raws;
  std::vector<double> shares;
  for (int round = 0; round < kRounds; ++round) {
    const std::unique_ptr<KvCache> cache = bench.open_cache(&options);
    make_cold(folder.path());
    raws.push_back(raw.read_seconds());
    seconds.push_back(bench.resume_seconds(*cache, static_cast<uint64_t>(round) % kSessions));
    shares.push_back(raws.back() / seconds.back());
  }
  Result result;
  result.shape = fmt::format("one of {} sessions of {} tokens, {:.1f} MB, cold; looked up, read, checked", kSessions,
                             kTokens, static_cast<double>(session_bytes) / 1e6);
  result.median = median(seconds) * 1e3;
  result.unit = "ms";
  result.limit = "sequential O_DIRECT read";
  result.limit_value = median(raws) * 1e3;
  result.share = median(shares);
  return result;
}

Result resume_100k_ram(const KvBench& bench) {
  const std::unique_ptr<KvCache> cache = bench.open_cache(nullptr);
  {
    SequenceState state(bench.layout);
    bench.extend(state, 0, kTokens);
    cache->publish(state, {}, "", nullptr);
  }
  std::vector<double> seconds;
  seconds.reserve(9);
  for (int round = 0; round < 9; ++round)
    seconds.push_back(bench.resume_seconds(*cache, 0));
  return bounded(fmt::format("{} tokens whose blocks are in RAM: keys, lookup, a new state", kTokens),
                 median(seconds) * 1e3, "ms", 10);
}

/// Writes new blocks at a fixed rate until it is destroyed.
class BackgroundWrites {
 public:
  static constexpr int64_t kBlocksPerSecond = 100;

  BackgroundWrites(const KvBench& bench, BlockStore& store, uint64_t first_key)
      : thread_([&bench, &store, first_key](const std::stop_token& stop) {
          const auto start = std::chrono::steady_clock::now();
          for (int64_t i = 0; !stop.stop_requested(); ++i) {
            std::this_thread::sleep_until(start + i * std::chrono::milliseconds(1000 / kBlocksPerSecond));
            StoredBlock block;
            const uint64_t number = first_key + static_cast<uint64_t>(i);
            std::memcpy(block.key.digest.data(), &number, sizeof number);
            block.tokens.resize(kBlockTokens);
            block.data = bench.blocks[static_cast<size_t>(i) % bench.blocks.size()];
            store.write(std::move(block));
          }
        }) {}

 private:
  std::jthread thread_;
};

/// Decode steps of the cut model, alone and beside a writer, by turns.
Result decode_slowdown(const KvBench& bench, const Workbench& workbench) {
  constexpr int kRounds = 12;
  constexpr size_t kSteps = 6;
  const std::unique_ptr<Model> cut = make_cut_model({.experts = 12, .vocab_size = 32768});
  const Model& model = *cut;
  const TempFolder folder(bench.storage);
  const std::unique_ptr<BlockStore> store = open_disk_store(bench.store_options(folder));
  Arena arena;
  SequenceState state = model.new_sequence();
  std::vector<InputToken> tokens = session_tokens(1, size_t{512} + size_t{2} * (kRounds + 1) * kSteps);
  for (InputToken& token : tokens)
    token.id %= 32768;
  (void)prefill(model, workbench.runtime(), arena, state, std::span(tokens).first(512), PrefillOptions{},
                [](int64_t, Span2d<const float>, size_t) { return true; });
  size_t next = 512;
  const auto decode = [&] {
    return seconds_of([&] {
      for (size_t i = 0; i < kSteps; ++i) {
        const Arena::Scope scope(arena);
        const ForwardRequest request{&state, std::span(tokens).subspan(next++, 1), 0, 1};
        (void)forward(model, workbench.runtime(), arena, {&request, 1});
      }
    });
  };
  decode();
  std::vector<double> ratios;
  std::vector<double> alone;
  alone.reserve(kRounds);
  for (int round = 0; round < kRounds; ++round) {
    alone.push_back(decode());
    {
      const BackgroundWrites writes(bench, *store, static_cast<uint64_t>(round + 1) << 32);
      ratios.push_back(decode() / alone.back());
    }
    store->flush();
  }
  const double percent = (median(ratios) - 1) * 100;
  Result result =
      bounded(fmt::format("decode steps of {:.1f} ms, four layers, beside {} new blocks a second ({:.1f} MB/s)",
                          median(alone) / kSteps * 1e3, BackgroundWrites::kBlocksPerSecond,
                          BackgroundWrites::kBlocksPerSecond * 0.11392),
              percent, "percent", 5);
  result.share = percent <= 0 ? 1 : 5 / percent;
  return result;
}

/// Sessions come and go in a store that is full, one in four is used again and stays: device bytes per payload byte.
Result write_amplification(const KvBench& bench) {
  const TempFolder folder(bench.storage);
  DiskStoreOptions options = bench.store_options(folder);
  options.capacity_bytes = uint64_t{256} << 20;
  constexpr uint64_t kChains = 160;
  constexpr int64_t kChainBlocks = 64;
  int64_t time = 1'800'000'000;
  options.now = [&time] { return time; };
  uint64_t payload = 0;
  uint64_t before = 0;
  uint64_t largest = 0;
  {
    const std::unique_ptr<BlockStore> store = open_disk_store(options);
    before = device_written_bytes();
    for (uint64_t chain = 0; chain < kChains; ++chain) {
      BlockKey parent;
      for (int64_t i = 0; i < kChainBlocks; ++i) {
        StoredBlock block;
        block.index = i;
        const std::array<uint64_t, 2> number{chain, static_cast<uint64_t>(i) + 1};
        std::memcpy(block.key.digest.data(), number.data(), sizeof number);
        block.key.digest[7] = static_cast<std::byte>(chain * 37);
        block.parent = parent;
        parent = block.key;
        block.tokens.resize(kBlockTokens);
        block.data = bench.blocks[static_cast<size_t>(i) % bench.blocks.size()];
        payload += block.data->size();
        store->write(std::move(block));
      }
      store->flush();
      time += 60;
      // The sessions 0, 4, 8 ... of the last sixteen go on.
      for (uint64_t old = chain / 4 * 4; old + 16 > chain && old + 4 > 4; old -= 4) {
        BlockKey key;
        const std::array<uint64_t, 2> number{old, static_cast<uint64_t>(kChainBlocks)};
        std::memcpy(key.digest.data(), number.data(), sizeof number);
        key.digest[7] = static_cast<std::byte>(old * 37);
        store->touch(key);
      }
      store->flush();
      largest = std::max(largest, folder_bytes(options.folder));
    }
  }
  const auto written = static_cast<double>(device_written_bytes() - before);
  return bounded(fmt::format("{:.0f} MB of blocks through a store of {} MB, which took {:.1f} MB at most; a quarter of "
                             "the sessions is used again",
                             static_cast<double>(payload) / 1e6, options.capacity_bytes >> 20,
                             static_cast<double>(largest) / 1048576.0),
                 written / static_cast<double>(payload), "ratio", 1.5);
}

}  // namespace

std::vector<Entry> kv_entries(const std::filesystem::path& storage) {
  const auto shared = std::make_shared<std::unique_ptr<KvBench>>();
  const auto with_bench = [shared, storage](auto measure) {
    return [shared, storage, measure](const Workbench& workbench) {
      if (!*shared) *shared = std::make_unique<KvBench>(storage);
      return measure(**shared, workbench);
    };
  };
  using B = const KvBench&;
  using W = const Workbench&;
  return {
      {"resident_bytes_per_token", with_bench([](B bench, W) { return resident_bytes_per_token(bench); })},
      {"disk_bytes_per_token", with_bench([](B bench, W) { return disk_bytes_per_token(bench, false, 900); })},
      {"disk_bytes_per_token_compressed",
       with_bench([](B bench, W) { return disk_bytes_per_token(bench, true, 820); })},
      {"resume_100k_disk", with_bench([](B bench, W) { return resume_100k_disk(bench, false); })},
      {"resume_100k_disk_compressed", with_bench([](B bench, W) { return resume_100k_disk(bench, true); })},
      {"resume_100k_ram_ms", with_bench([](B bench, W) { return resume_100k_ram(bench); })},
      {"decode_slowdown_while_writing",
       with_bench([](B bench, W workbench) { return decode_slowdown(bench, workbench); })},
      {"write_amplification", with_bench([](B bench, W) { return write_amplification(bench); })},
  };
}

}  // namespace tidepool::bench
