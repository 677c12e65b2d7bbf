// Kills a process that writes to a KV store, over and over, and looks at what is left each time. After each kill:
// the store opens, every block that flush() acknowledged is there, and no byte of any block is wrong.
//
//   cache_torture FOLDER ROUNDS [SEED]
//   cache_torture --full FOLDER         FOLDER lies on a disk with a few megabytes
//
// Every other group of rounds has a small capacity, so that segments are being reclaimed when the end comes.

#include <fmt/format.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill() is not in <csignal>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>

#include "kv/disk_store.h"
#include "kv/store_maintenance.h"
#include "kv/store_test_support.h"

namespace tidepool {
namespace {

namespace fs = std::filesystem;
using store::same_block;
using store::test_block;
using store::test_key;
using store::test_snapshot;

constexpr size_t kBlockBytes = 20000;
constexpr int64_t kRoundsPerFolder = 25;
/// Of a chain in a small store: what is used last is never evicted for itself.
constexpr int64_t kSmallChain = 200;

struct Trial {
  fs::path folder;
  bool is_small = false;
  int64_t round = 0;

  [[nodiscard]] DiskStoreOptions options() const {
    DiskStoreOptions result;
    result.folder = folder;
    result.capacity_bytes = uint64_t{is_small ? 8U : 512U} << 20;
    result.snapshot_capacity_bytes = uint64_t{16} << 20;
    result.now = [round = round] { return 1'800'000'000 + round * 60; };
    return result;
  }
};

/// Writes blocks from `next` on until it is killed, and says after each flush how many are acknowledged.
[[noreturn]] void write_until_killed(const Trial& trial, uint64_t chain, int64_t next, int report) {
  const auto store = open_disk_store(trial.options());
  std::mt19937 random(static_cast<uint32_t>(next));
  while (true) {
    const int64_t end = next + 1 + static_cast<int64_t>(random() % 12);
    for (; next < end; ++next)
      store->write(test_block(chain, next, kBlockBytes));
    store->write_snapshot(test_snapshot(chain, next - 1, next * kBlockTokens + 1, 50000));
    store->flush();
    if (::write(report, &next, sizeof next) != static_cast<ssize_t>(sizeof next)) std::_Exit(2);
    if (trial.is_small && next >= kSmallChain) ::pause();
  }
}

/// Blocks acknowledged by a child that is killed at a random moment.
int64_t run_child(const Trial& trial, uint64_t chain, int64_t next, std::chrono::microseconds life) {
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("no process");
  if (child == 0) {
    ::close(ends[0]);
    write_until_killed(trial, chain, next, ends[1]);
  }
  ::close(ends[1]);
  std::this_thread::sleep_for(life);
  ::kill(child, SIGKILL);
  int64_t acknowledged = next;
  while (::read(ends[0], &next, sizeof next) == static_cast<ssize_t>(sizeof next))
    acknowledged = next;
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFSIGNALED(status)) throw std::runtime_error(fmt::format("the writer ended by itself: {}", status));
  return acknowledged;
}

struct Tally {
  int64_t acknowledged = 0;
  int64_t lost = 0;
  int64_t wrong = 0;
};

/// The blocks and snapshots of a chain, compared with what was written.
Tally look(const Trial& trial, uint64_t chain, int64_t acknowledged) {
  Tally tally;
  tally.acknowledged = acknowledged;
  const auto store = open_disk_store(trial.options());
  const auto results = store->read(store::test_chain(chain, acknowledged + 20));
  for (size_t i = 0; i < results.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    if (results[i].block) {
      tally.wrong += same_block(*results[i].block, test_block(chain, index, kBlockBytes)) ? 0 : 1;
    } else if (index < acknowledged) {
      ++tally.lost;
    }
  }
  const BlockKey last = test_key(chain, acknowledged - 1);
  for (const BlockStore::SnapshotInfo& info : store->snapshots(last)) {
    const auto snapshot = store->read_snapshot(info.key);
    const auto expected = test_snapshot(chain, acknowledged - 1, acknowledged * kBlockTokens + 1, 50000);
    tally.wrong += snapshot && snapshot->bytes != expected.bytes ? 1 : 0;
  }
  if (acknowledged > 0 && store->snapshots(last).empty()) ++tally.lost;
  uint64_t bytes = 0;
  for (const auto& file : fs::directory_iterator(trial.folder))
    bytes += file.path().filename().string().starts_with("blocks") ? file.file_size() : 0;
  if (bytes > trial.options().capacity_bytes) throw std::runtime_error(fmt::format("{} bytes of files", bytes));
  return tally;
}

int torture(const fs::path& parent, int64_t rounds, uint32_t seed) {
  std::mt19937 random(seed);
  Tally sum;
  int64_t acknowledged = 0;
  Trial trial;
  for (int64_t round = 0; round < rounds; ++round) {
    if (round % kRoundsPerFolder == 0) {
      if (round > 0) fs::remove_all(trial.folder);
      trial = {.folder = parent / fmt::format("torture-{}", round), .is_small = round / kRoundsPerFolder % 2 == 1};
      acknowledged = 0;
    }
    trial.round = round;
    // In a small store each round begins a new context, for which older ones make room.
    if (trial.is_small) acknowledged = 0;
    const auto chain = static_cast<uint64_t>(trial.is_small ? round : round / kRoundsPerFolder) + 1;
    const std::chrono::microseconds life(1000 + random() % 120000);
    acknowledged = run_child(trial, chain, acknowledged, life);
    const Tally tally = look(trial, chain, acknowledged);
    sum.acknowledged += tally.acknowledged;
    sum.lost += tally.lost;
    sum.wrong += tally.wrong;
    const StoreVerification verification = verify_store(trial.folder);
    if (tally.lost + tally.wrong > 0 || !verification.damages.empty()) {
      fmt::print("round {} (seed {}): {} lost, {} wrong, {} damaged; the folder stays: {}\n", round, seed, tally.lost,
                 tally.wrong, verification.damages.size(), trial.folder.string());
      return 1;
    }
  }
  fs::remove_all(trial.folder);
  fmt::print("{} kills: {} acknowledged blocks looked up, {} lost, {} wrong\n", rounds, sum.acknowledged, sum.lost,
             sum.wrong);
  return 0;
}

/// Blocks of chain 1 that are found; throws when one of them is not as it was written.
int64_t count_right(BlockStore& store, int64_t blocks) {
  int64_t found = 0;
  for (int64_t i = 0; i < blocks; ++i) {
    const BlockKey key = test_key(1, i);
    if (!store.find(key)) continue;
    const auto results = store.read({&key, 1});
    if (!results[0].block || !same_block(*results[0].block, test_block(1, i, kBlockBytes))) {
      throw std::runtime_error(fmt::format("block {} is found and not there, or wrong", i));
    }
    ++found;
  }
  return found;
}

/// Fills the disk, makes room again, and looks.
int fill_disk(const fs::path& parent) {
  const Trial trial{parent / "kv", true};
  constexpr int64_t kMany = 300;
  const fs::path filler = parent / "filler";
  {
    std::ofstream(filler) << std::string(1 << 20, 'x');
    const auto store = open_disk_store(trial.options());
    for (int64_t i = 0; i < kMany; ++i)
      store->write(test_block(1, i, kBlockBytes));
    store->flush();
    const int64_t before = count_right(*store, kMany);
    const BlockStore::Stats stats = store->stats();
    if (before == kMany || stats.dropped_writes != static_cast<uint64_t>(kMany - before) || stats.last_error.empty()) {
      throw std::runtime_error(
          fmt::format("{} of {} fit, {} dropped: the disk was to be full", before, kMany, stats.dropped_writes));
    }
    fs::remove(filler);
    for (int64_t i = kMany; i < kMany + 20; ++i)
      store->write(test_block(1, i, kBlockBytes));
    store->flush();
    const int64_t after = count_right(*store, kMany + 20);
    fmt::print("full disk ({}): {} of {} blocks fit, and 20 more when there was room\n", stats.last_error, before,
               kMany);
    if (after != before + 20) throw std::runtime_error(fmt::format("{} after making room, not {}", after, before + 20));
  }
  const auto store = open_disk_store(trial.options());
  fmt::print("{} right after reopening\n", count_right(*store, kMany + 20));
  return verify_store(trial.folder).damages.empty() ? 0 : 1;
}

}  // namespace
}  // namespace tidepool

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) {
    fmt::print(stderr, "usage: cache_torture FOLDER ROUNDS [SEED] | --full FOLDER\n");
    return 2;
  }
  try {
    if (std::string(argv[1]) == "--full") return tidepool::fill_disk(argv[2]);
    return tidepool::torture(argv[1], std::atoll(argv[2]), argc > 3 ? static_cast<uint32_t>(std::atoll(argv[3])) : 1);
  } catch (const std::exception& error) {
    fmt::print(stderr, "cache_torture: {}\n", error.what());
    return 1;
  }
}
