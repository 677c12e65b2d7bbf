#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <memory>
#include <string>

#include "apps/checkpoint_report.h"
#include "apps/command.h"
#include "apps/json_values.h"
#include "apps/output.h"
#include "apps/size_flags.h"
#include "base/error.h"
#include "base/log.h"
#include "kv/store_maintenance.h"
#include "text/json.h"

namespace tidepool {
namespace {

constexpr const char* kCacheExamples =
    "Examples:\n"
    "  tidepool cache stat\n"
    "  tidepool cache verify --kv-dir FOLDER --json\n"
    "  tidepool cache trim --kv-disk 16GiB\n"
    "  tidepool cache clear --yes\n"
    "\n"
    "stat and verify only read, also beside a program that uses the folder; trim and clear need it for themselves.\n"
    "verify ends with 1 when something is damaged: such records cost recomputing them, never a wrong answer.";

struct CacheCommandFlags {
  std::string folder;
  uint64_t kv_disk = uint64_t{64} << 30;
  uint64_t snapshot_disk = uint64_t{2} << 30;
  uint64_t kv_ttl = uint64_t{72} * 3600;
  bool wants_json = false;
  bool is_confirmed = false;

  [[nodiscard]] std::filesystem::path path() const {
    return folder.empty() ? default_store_folder() : std::filesystem::path(folder);
  }
};

Json optional_number(const std::optional<int64_t>& value) {
  return value ? Json::make_integer(*value) : Json();
}

/// "2026-11-30 12:00:00 UTC".
std::string date(const std::optional<int64_t>& seconds) {
  if (!seconds) return "-";
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(static_cast<std::time_t>(*seconds)));
}

void write(const Json& json) {
  Output(Output::kStandardOutput).write(write_json(json) + "\n");
}

int stat(const CacheCommandFlags& flags) {
  const StoreSummary summary = summarize_store(flags.path());
  if (flags.wants_json) {
    Json json = Json::make_object();
    json.set("folder", Json::make_string(flags.path().string()));
    json.set("owner", summary.owner ? Json::make_string(*summary.owner) : Json());
    json.set("blocks", Json::make_integer(summary.blocks));
    json.set("snapshots", Json::make_integer(summary.snapshots));
    json.set("disk_bytes", json_count(summary.disk_bytes));
    json.set("block_bytes", json_count(summary.block_bytes));
    json.set("snapshot_bytes", json_count(summary.snapshot_bytes));
    json.set("reclaimable_bytes", json_count(summary.reclaimable_bytes));
    json.set("segments", Json::make_integer(summary.segments));
    json.set("unusable_segments", Json::make_integer(summary.unusable_segments));
    json.set("damaged_bytes", json_count(summary.damaged_bytes));
    json.set("oldest_use", optional_number(summary.oldest_use));
    json.set("newest_use", optional_number(summary.newest_use));
    write(json);
    return kExitOk;
  }
  std::string text = printable(flags.path().string(), 4096) + "\n";
  const auto line = [&](std::string_view name, const std::string& value) {
    text += fmt::format("  {:<16}{}\n", name, value);
  };
  line("used by", summary.owner.value_or("nobody"));
  line("blocks", fmt::format("{} of {} tokens, {}", format_count(static_cast<uint64_t>(summary.blocks)), kBlockTokens,
                             format_bytes(summary.block_bytes)));
  line("snapshots", fmt::format("{}, {}", format_count(static_cast<uint64_t>(summary.snapshots)),
                                format_bytes(summary.snapshot_bytes)));
  line("on disk", fmt::format("{} in {} files; {} of it not in use", format_bytes(summary.disk_bytes), summary.segments,
                              format_bytes(summary.reclaimable_bytes)));
  line("last used", fmt::format("{} to {}", date(summary.oldest_use), date(summary.newest_use)));
  if (summary.unusable_segments > 0) line("not usable", fmt::format("{} files", summary.unusable_segments));
  if (summary.damaged_bytes > 0) line("damaged", format_bytes(summary.damaged_bytes));
  Output(Output::kStandardOutput).write(text);
  return kExitOk;
}

int verify(const CacheCommandFlags& flags) {
  const StoreVerification result = verify_store(flags.path());
  if (flags.wants_json) {
    Json json = Json::make_object();
    json.set("folder", Json::make_string(flags.path().string()));
    json.set("records", Json::make_integer(result.records));
    json.set("bytes", json_count(result.bytes));
    Json::Array damages;
    for (const StoreDamage& damage : result.damages) {
      Json entry = Json::make_object();
      entry.set("file", Json::make_string(damage.file.string()));
      entry.set("begin", json_count(damage.begin));
      entry.set("end", json_count(damage.end));
      entry.set("what", Json::make_string(damage.what));
      damages.push_back(std::move(entry));
    }
    json.set("damages", Json::make_array(std::move(damages)));
    Json::Array foreign;
    for (const std::filesystem::path& file : result.foreign)
      foreign.push_back(Json::make_string(file.string()));
    json.set("foreign", Json::make_array(std::move(foreign)));
    write(json);
  } else {
    std::string text;
    for (const StoreDamage& damage : result.damages) {
      text += fmt::format("{}: bytes {} to {}: {}\n", printable(damage.file.string(), 4096), damage.begin, damage.end,
                          printable(damage.what, 4096));
    }
    for (const std::filesystem::path& file : result.foreign)
      text += fmt::format("{}: of another version, not looked into\n", printable(file.string(), 4096));
    text += fmt::format("{} records, {} read, {} damaged\n", format_count(static_cast<uint64_t>(result.records)),
                        format_bytes(result.bytes), result.damages.size());
    Output(Output::kStandardOutput).write(text);
  }
  return result.damages.empty() ? kExitOk : kExitRefused;
}

int say_freed(const CacheCommandFlags& flags, uint64_t bytes) {
  if (flags.wants_json) {
    Json json = Json::make_object();
    json.set("folder", Json::make_string(flags.path().string()));
    json.set("freed_bytes", json_count(bytes));
    write(json);
  } else {
    Output(Output::kStandardOutput).write(fmt::format("{} freed\n", format_bytes(bytes)));
  }
  return kExitOk;
}

int trim(const CacheCommandFlags& flags) {
  DiskStoreOptions options;
  options.folder = flags.path();
  options.capacity_bytes = flags.kv_disk;
  options.snapshot_capacity_bytes = flags.snapshot_disk;
  options.ttl = std::chrono::seconds(flags.kv_ttl);
  return say_freed(flags, trim_store(options));
}

bool is_wanted(const CacheCommandFlags& flags) {
  if (flags.is_confirmed) return true;
  if (flags.wants_json || ::isatty(STDIN_FILENO) == 0) {
    throw Error(ErrorCode::kInvalidArgument, "nobody is here to be asked: clear takes --yes");
  }
  const StoreSummary summary = summarize_store(flags.path());
  Output(Output::kStandardOutput)
      .write(fmt::format("Remove {} of KV from {}? [y/N] ", format_bytes(summary.disk_bytes),
                         printable(flags.path().string(), 4096)));
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "y" || answer == "Y" || answer == "yes";
}

int clear(const CacheCommandFlags& flags) {
  if (!is_wanted(flags)) return kExitRefused;
  return say_freed(flags, clear_store(flags.path()));
}

}  // namespace

void add_cache_command(CLI::App& program, Invocation& invocation) {
  CLI::App* command = program.add_subcommand("cache", "the folder that keeps KV between runs: look at it, tidy it");
  const auto flags = std::make_shared<CacheCommandFlags>();
  command->require_subcommand(1);
  command->footer(kCacheExamples);
  const auto add = [&](const char* name, const char* help, int (*run)(const CacheCommandFlags&)) {
    CLI::App* action = command->add_subcommand(name, help);
    action->add_option("--kv-dir", flags->folder, "the folder; default: tidepool/kv in the user's cache folder");
    action->add_flag("--json", flags->wants_json, "one JSON object on standard output (docs/commands.md)");
    action->callback([flags, run, &invocation] {
      invocation.wants_json = flags->wants_json;
      invocation.body = [flags, run] { return run(*flags); };
    });
    return action;
  };
  add("stat", "what it holds", stat);
  add("verify", "read every byte and name what is damaged", verify);
  CLI::App* limits = add("trim", "apply limits now", trim);
  limits->add_option("--kv-disk", flags->kv_disk, "size of its blocks, as 64GiB")
      ->transform(size_value())
      ->default_str("64GiB");
  limits->add_option("--snapshot-disk", flags->snapshot_disk, "size of its snapshots, as 2GiB")
      ->transform(size_value())
      ->default_str("2GiB");
  limits->add_option("--kv-ttl", flags->kv_ttl, "how long what is not used stays, as 72h")
      ->transform(seconds_value())
      ->default_str("72h");
  add("clear", "remove everything in it", clear)->add_flag("--yes", flags->is_confirmed, "do not ask");
}

}  // namespace tidepool
