#include "engine/trace_input.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include <fmt/format.h>

#include "base/error.h"

namespace tidepool {

namespace {

void append_tokens(const SafetensorsFile& test_case, const std::string& name, const ModelConfig& config,
                   std::vector<InputToken>& out) {
  for (const int64_t id : read_trace_ints(test_case, name)) {
    if (id < 0 || id >= config.vocab_size) {
      refuse_case(test_case, ErrorCode::kInvalidArgument,
                  fmt::format("{} holds token {} outside the vocabulary of {}", name, id, config.vocab_size));
    }
    out.push_back({static_cast<int32_t>(id), false});
  }
}

TraceKind kind_of(const SafetensorsFile& test_case) {
  const auto has = [&](std::string_view name) { return test_case.find(name) != nullptr; };
  if (has("primes") && has("compressed_ids")) return TraceKind::kEngram;
  if (has("sizes")) return TraceKind::kImagePlan;
  if (has("prompt_ids")) return has("follow_ids") ? TraceKind::kDraft : TraceKind::kGreedy;
  if (has("input_ids") && has("token_types")) return TraceKind::kImage;
  if (has("input_ids")) return has("prompt_len") ? TraceKind::kDecode : TraceKind::kPrefill;
  refuse_case(test_case, ErrorCode::kUnsupported,
              "no input_ids or prompt_ids; a case is a prefill, decode, greedy, draft, image or engram file as "
              "docs/vectors.md describes");
}

/// The number behind `prefix` and in front of `suffix`, as the engine writes it ("stream.00" names nothing); -1 if the
/// text is no such name.
int64_t number_in(std::string_view text, std::string_view prefix, std::string_view suffix) {
  if (text.size() < prefix.size() + suffix.size() || !text.starts_with(prefix) || !text.ends_with(suffix)) return -1;
  text = text.substr(prefix.size(), text.size() - prefix.size() - suffix.size());
  int64_t number = 0;
  const bool is_number = std::from_chars(text.data(), text.data() + text.size(), number).ec == std::errc{};
  return is_number && std::to_string(number) == text ? number : -1;
}

bool is_input(std::string_view name) {
  constexpr std::array kInputs{"input_ids", "prompt_ids",     "prompt_len",  "follow_ids",
                               "rows",      "compressed_ids", "token_types", "sizes"};
  return std::ranges::find(kInputs, name) != kInputs.end() || name.starts_with("params.") ||
         number_in(name, "img", ".rgb") >= 0;
}

/// Spreads the reference measured on itself, and its literal decode with stale index keys: nothing to compute.
bool is_reference_only(std::string_view name) {
  return name.starts_with("row_") || name.starts_with("round_") || name == "stable" || name == "logits_literal";
}

/// Splits "hp.topk.5" or "img0.vit_block.1" into its parts.
WantedTensor parse_name(const SafetensorsFile::Entry& entry) {
  WantedTensor wanted{entry.name, entry.name, -1, -1, TraceVariant::kOfficial, entry.dtype, entry.shape};
  if (wanted.base.starts_with("hp.")) {
    wanted.variant = TraceVariant::kHp;
    wanted.base.erase(0, 3);
  }
  if (const size_t dot = wanted.base.find('.'); dot != std::string::npos) {
    wanted.image = number_in(std::string_view(wanted.base).substr(0, dot), "img", "");
    if (wanted.image >= 0) wanted.base.erase(0, dot + 1);
  }
  if (const size_t dot = wanted.base.rfind('.'); dot != std::string::npos) {
    wanted.layer = number_in(std::string_view(wanted.base).substr(dot), ".", "");
    if (wanted.layer >= 0) wanted.base.resize(dot);
  }
  for (const auto& [suffix, variant] : {std::pair{std::string_view("_hp"), TraceVariant::kHp},
                                        std::pair{std::string_view("_noactq"), TraceVariant::kNoActivationGrid}}) {
    if (!wanted.base.ends_with(suffix)) continue;
    wanted.variant = variant;
    wanted.base.resize(wanted.base.size() - suffix.size());
  }
  if (wanted.base == "merged_embed") wanted.base = "embed";
  return wanted;
}

}  // namespace

namespace {

/// The anchors and drafts that the rounds of a draft case follow.
std::vector<int64_t> read_draft_ids(const SafetensorsFile& test_case, const ModelConfig& config, size_t rounds) {
  if (test_case.find("draft_ids") == nullptr || !config.dspark) return {};
  std::vector<int64_t> ids = read_trace_ints(test_case, "draft_ids");
  const auto block = static_cast<size_t>(config.dspark->block_size);
  if (ids.size() != rounds * (1 + block)) {
    refuse_case(test_case, ErrorCode::kInvalidArgument,
                fmt::format("draft_ids must be {} rows (the prompt's end and each of follow_ids) of {} tokens", rounds,
                            1 + block));
  }
  for (const int64_t id : ids) {
    if (id >= -1 && id < config.vocab_size) continue;
    refuse_case(test_case, ErrorCode::kInvalidArgument,
                fmt::format("draft_ids holds token {} outside the vocabulary of {}", id, config.vocab_size));
  }
  return ids;
}

/// The outputs of a greedy case say how many tokens it writes.
void check_greedy_length(const SafetensorsFile& test_case, const ModelConfig& config, int64_t prompt) {
  for (const SafetensorsFile::Entry& entry : test_case.entries()) {
    if (is_input(entry.name) || entry.shape.empty()) continue;
    if (entry.shape[0] <= config.max_position_embeddings - prompt + 1) continue;
    refuse_case(test_case, ErrorCode::kInvalidArgument,
                fmt::format("tensor {} asks for {} tokens behind {}; the context holds {}", entry.name, entry.shape[0],
                            prompt, config.max_position_embeddings));
  }
}

}  // namespace

TraceInput read_trace_input(const SafetensorsFile& test_case, const ModelConfig& config) {
  TraceInput input;
  input.kind = kind_of(test_case);
  if (input.kind == TraceKind::kEngram || input.kind == TraceKind::kImagePlan) return input;
  const bool has_prompt_ids = input.kind == TraceKind::kGreedy || input.kind == TraceKind::kDraft;
  append_tokens(test_case, has_prompt_ids ? "prompt_ids" : "input_ids", config, input.tokens);
  input.prompt_length = static_cast<int64_t>(input.tokens.size());
  if (input.kind == TraceKind::kImage) input.images = read_trace_images(test_case, config, input.tokens);
  const bool goes_on = input.kind == TraceKind::kDraft || input.kind == TraceKind::kImage;
  if (goes_on && test_case.find("follow_ids") != nullptr) append_tokens(test_case, "follow_ids", config, input.tokens);
  const auto count = static_cast<int64_t>(input.tokens.size());
  if (input.prompt_length == 0 || count > config.max_position_embeddings) {
    refuse_case(test_case, ErrorCode::kInvalidArgument,
                fmt::format("{} tokens; from 1 to max_position_embeddings {} can be run", count,
                            config.max_position_embeddings));
  }
  if (input.kind == TraceKind::kDraft)
    input.draft_ids = read_draft_ids(test_case, config, static_cast<size_t>(count - input.prompt_length + 1));
  if (input.kind == TraceKind::kGreedy) check_greedy_length(test_case, config, count);
  if (input.kind == TraceKind::kDecode) {
    const std::vector<int64_t> length = read_trace_ints(test_case, "prompt_len");
    if (length.size() != 1 || length[0] < 1 || length[0] > count) {
      refuse_case(test_case, ErrorCode::kInvalidArgument,
                  "prompt_len must be one number from 1 to the number of tokens");
    }
    input.prompt_length = length[0];
  }
  if (test_case.find("rows") != nullptr) {
    if (input.kind == TraceKind::kGreedy) {
      refuse_case(test_case, ErrorCode::kUnsupported, "rows limits prefill and decode cases, this is a greedy one");
    }
    input.rows = read_trace_ints(test_case, "rows");
    for (const int64_t row : *input.rows) {
      if (row < 0 || row >= count) {
        refuse_case(test_case, ErrorCode::kInvalidArgument,
                    fmt::format("rows holds {}, outside the {} tokens", row, count));
      }
    }
  }
  return input;
}

namespace {

bool is_float(Dtype dtype) {
  return dtype == Dtype::kF32 || dtype == Dtype::kBf16;
}

/// Outputs that are whole numbers; all others are BF16 or F32, and `candidates` is BOOL.
bool is_integer_output(std::string_view base) {
  if (base.starts_with("plan.")) return true;
  constexpr std::array kIntegers{"next_id",        "anchor_ids",       "draft_ids", "geometry", "grid",
                                 "start",          "output_ids",       "route_idx", "topk",     "engram_hash",
                                 "hash_ids",       "primes",           "offsets",   "pad_id",   "multipliers",
                                 "num_embeddings", "compressed_vocab", "layer_ids", "token_map"};
  return std::ranges::find(kIntegers, base) != kIntegers.end();
}

void check_dtype(const SafetensorsFile& test_case, const WantedTensor& wanted) {
  const bool is_integer = wanted.dtype == Dtype::kI32 || wanted.dtype == Dtype::kI64;
  bool fits = is_float(wanted.dtype);
  const char* expected = "F32 or BF16";
  if (wanted.base == "candidates") {
    fits = wanted.dtype == Dtype::kBool;
    expected = "BOOL";
  } else if (wanted.base == "padded_rgb") {
    fits = wanted.dtype == Dtype::kU8;
    expected = "U8";
  } else if (is_integer_output(wanted.base)) {
    fits = is_integer;
    expected = "I32 or I64";
  }
  if (fits) return;
  refuse_case(test_case, ErrorCode::kUnsupported,
              fmt::format("tensor {} is {}; {} expected", wanted.name, dtype_name(wanted.dtype), expected));
}

}  // namespace

bool is_draft_case(const SafetensorsFile& test_case) {
  return kind_of(test_case) == TraceKind::kDraft;
}

std::vector<WantedTensor> wanted_tensors(const SafetensorsFile& test_case, TraceOptions::Numerics numerics,
                                         std::vector<std::string>& not_computed) {
  std::vector<WantedTensor> result;
  for (const SafetensorsFile::Entry& entry : test_case.entries()) {
    if (is_input(entry.name)) continue;
    WantedTensor wanted = parse_name(entry);
    const bool is_skipped = is_reference_only(entry.name) || (numerics == TraceOptions::Numerics::kOfficial &&
                                                              wanted.variant != TraceVariant::kOfficial);
    if (is_skipped) {
      not_computed.push_back(entry.name);
      continue;
    }
    check_dtype(test_case, wanted);
    if (numerics == TraceOptions::Numerics::kHp && wanted.variant == TraceVariant::kOfficial)
      wanted.variant = TraceVariant::kHp;
    result.push_back(std::move(wanted));
  }
  return result;
}

std::vector<int64_t> read_trace_ints(const SafetensorsFile& test_case, const std::string& name) {
  const TensorView tensor = test_case.tensor(name);
  const size_t width = dtype_bytes(tensor.dtype);
  if (tensor.dtype != Dtype::kI32 && tensor.dtype != Dtype::kI64) {
    refuse_case(test_case, ErrorCode::kUnsupported,
                fmt::format("tensor {} is {}; I32 or I64 expected", name, dtype_name(tensor.dtype)));
  }
  std::vector<int64_t> values(tensor.bytes / width);
  for (size_t i = 0; i < values.size(); ++i) {
    if (tensor.dtype == Dtype::kI64) {
      std::memcpy(&values[i], tensor.data + i * width, width);
    } else {
      int32_t value = 0;
      std::memcpy(&value, tensor.data + i * width, width);
      values[i] = value;
    }
  }
  return values;
}

void refuse_case(const SafetensorsFile& test_case, ErrorCode code, const std::string& what) {
  throw Error(code, fmt::format("{}: {}", test_case.path().string(), what));
}

}  // namespace tidepool
