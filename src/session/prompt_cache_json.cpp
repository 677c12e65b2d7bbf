#include "session/prompt_cache_json.h"

#include <algorithm>
#include <string_view>

#include "text/detokenizer.h"

namespace tidepool {
namespace {

/// Enough to recognise the place, too little to fill a log.
constexpr size_t kTextBytesMax = 80;

Json text(std::string_view value) {
  return Json::make_string(std::string(value));
}

}  // namespace

std::string text_at_difference(const CacheReport& report, std::span<const int32_t> prompt, const LoadedModel& model) {
  if (!report.first_difference || !model.has_tokenizer()) return {};
  // Only whole characters come out of a detokenizer, so it is cut between tokens and never within one.
  Detokenizer detokenizer(model.tokenizer());
  std::string result;
  for (const int32_t id : prompt.subspan(static_cast<size_t>(*report.first_difference))) {
    const std::string piece = detokenizer.push(id);
    if (result.size() + piece.size() > kTextBytesMax) break;
    result += piece;
  }
  return result;
}

Json prompt_cache_json(const CacheReport& report, std::span<const int32_t> prompt, const LoadedModel& model) {
  Json object = Json::make_object();
  object.set("tier", text(cache_tier_name(report.tier)));
  object.set("hit", Json::make_integer(report.hit_tokens));
  object.set("miss", Json::make_integer(report.prompt_tokens - report.hit_tokens));
  object.set("replayed", Json::make_integer(report.replayed_tokens));
  object.set("exact", Json::make_bool(report.is_exact));
  object.set("end", text(match_end_name(report.end)));
  if (report.first_difference) {
    object.set("first_difference", Json::make_integer(*report.first_difference));
    object.set("request_text_there", Json::make_string(text_at_difference(report, prompt, model)));
  }
  return object;
}

}  // namespace tidepool
