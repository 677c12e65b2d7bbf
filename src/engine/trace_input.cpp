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
  if (has("token_types") || has("img0.rgb") || has("sizes")) {
    refuse_case(test_case, ErrorCode::kUnsupported, "this is an image case; trace computes text cases only");
  }
  if (has("draft_ids") || has("anchor_ids")) {
    refuse_case(test_case, ErrorCode::kUnsupported, "this is a draft (DSpark) case; trace computes the backbone only");
  }
  if (has("primes") && has("compressed_ids")) return TraceKind::kEngram;
  if (has("prompt_ids")) return TraceKind::kGreedy;
  if (has("input_ids")) return has("prompt_len") ? TraceKind::kDecode : TraceKind::kPrefill;
  refuse_case(
      test_case, ErrorCode::kUnsupported,
      "no input_ids or prompt_ids; a case is a prefill, decode, greedy or engram file as docs/vectors.md describes");
}

bool is_input(std::string_view name) {
  constexpr std::array kInputs{"input_ids", "prompt_ids", "prompt_len", "follow_ids", "rows", "compressed_ids"};
  return std::ranges::find(kInputs, name) != kInputs.end();
}

/// Spreads the reference measured on itself, and its literal decode with stale index keys: nothing to compute.
bool is_reference_only(std::string_view name) {
  return name.starts_with("row_") || name == "logits_literal";
}

/// Splits "hp.topk.5" into its parts.
WantedTensor parse_name(const SafetensorsFile::Entry& entry) {
  WantedTensor wanted{entry.name, entry.name, -1, TraceVariant::kOfficial, entry.dtype, entry.shape};
  if (wanted.base.starts_with("hp.")) {
    wanted.variant = TraceVariant::kHp;
    wanted.base.erase(0, 3);
  }
  const size_t dot = wanted.base.rfind('.');
  if (dot != std::string::npos) {
    const char* begin = wanted.base.data() + dot + 1;
    const char* end = wanted.base.data() + wanted.base.size();
    int64_t layer = 0;
    // Only as the engine writes it: "stream.00" names nothing.
    if (std::from_chars(begin, end, layer).ec == std::errc{} && std::to_string(layer) == std::string(begin, end)) {
      wanted.layer = layer;
      wanted.base.resize(dot);
    }
  }
  if (wanted.base == "logits_hp") wanted.variant = TraceVariant::kHp;
  if (wanted.base == "logits_noactq") wanted.variant = TraceVariant::kNoActivationGrid;
  if (wanted.base.starts_with("logits_")) wanted.base = "logits";
  return wanted;
}

}  // namespace

namespace {

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
  if (input.kind == TraceKind::kEngram) return input;
  append_tokens(test_case, input.kind == TraceKind::kGreedy ? "prompt_ids" : "input_ids", config, input.tokens);
  const auto count = static_cast<int64_t>(input.tokens.size());
  if (count == 0 || count > config.max_position_embeddings) {
    refuse_case(test_case, ErrorCode::kInvalidArgument,
                fmt::format("{} tokens; from 1 to max_position_embeddings {} can be run", count,
                            config.max_position_embeddings));
  }
  input.prompt_length = count;
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
  constexpr std::array kIntegers{"next_id",        "output_ids",       "route_idx", "topk",     "engram_hash",
                                 "hash_ids",       "primes",           "offsets",   "pad_id",   "multipliers",
                                 "num_embeddings", "compressed_vocab", "layer_ids", "token_map"};
  return std::ranges::find(kIntegers, base) != kIntegers.end();
}

void check_dtype(const SafetensorsFile& test_case, const WantedTensor& wanted) {
  const bool is_integer = wanted.dtype == Dtype::kI32 || wanted.dtype == Dtype::kI64;
  const bool fits = wanted.base == "candidates"      ? wanted.dtype == Dtype::kBool
                    : is_integer_output(wanted.base) ? is_integer
                                                     : is_float(wanted.dtype);
  if (fits) return;
  const char* expected = wanted.base == "candidates"      ? "BOOL"
                         : is_integer_output(wanted.base) ? "I32 or I64"
                                                          : "F32 or BF16";
  refuse_case(test_case, ErrorCode::kUnsupported,
              fmt::format("tensor {} is {}; {} expected", wanted.name, dtype_name(wanted.dtype), expected));
}

}  // namespace

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
