#include "engine/speculation.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "model/draft.h"

namespace tidepool {

namespace {

/// However proposing ends, constraints forget the tokens proposed.
class DraftsUnderWay {
 public:
  explicit DraftsUnderWay(std::vector<DraftingRequest> requests) : requests_(std::move(requests)) {}
  DraftsUnderWay(const DraftsUnderWay&) = delete;
  DraftsUnderWay& operator=(const DraftsUnderWay&) = delete;
  ~DraftsUnderWay() {
    for (const DraftingRequest& request : requests_)
      request.continuation->end_drafts(request.drafts->size());
  }

 private:
  std::vector<DraftingRequest> requests_;
};

}  // namespace

DraftOptions parse_draft_options(std::string_view text) {
  if (text == "off") return {};
  if (text == "auto") return {.mode = DraftOptions::Mode::kAuto};
  size_t length = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
  if (error == std::errc{} && end == text.data() + text.size() && length >= 1 && length <= kDraftLengthMax)
    return {.mode = DraftOptions::Mode::kFixed, .length = length};
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("draft \"{}\" is not known; use off, auto, or a number from 1 to {}", text, kDraftLengthMax));
}

size_t drafts_max(const DraftOptions& options, const ModelConfig& config) {
  if (options.mode == DraftOptions::Mode::kOff || !config.dspark) return 0;
  const auto block = static_cast<size_t>(config.dspark->block_size);
  return options.mode == DraftOptions::Mode::kAuto ? block : std::min(block, options.length);
}

void Drafts::add(const DraftedToken& token, double survival) {
  tokens_.push_back(token);
  survival_.push_back(survival);
}

std::span<float> Drafts::weights_for_next(size_t vocab, size_t most) {
  TIDEPOOL_CHECK(tokens_.size() < most, "room for a draft within the block");
  if (weights_.size() < most * vocab) {
    TIDEPOOL_CHECK(tokens_.empty(), "the room for distributions does not move");
    weights_.resize(most * vocab);
  }
  return std::span(weights_).subspan(tokens_.size() * vocab, vocab);
}

void Drafts::shorten(size_t count) {
  TIDEPOOL_CHECK(count <= tokens_.size(), "drafts can only be left out");
  tokens_.resize(count);
  survival_.resize(count);
}

void Drafts::clear() {
  shorten(0);
}

ModelDrafter::ModelDrafter(const Model& model, const Runtime& runtime, Arena& arena)
    : model_(model), runtime_(runtime), arena_(arena), samplers_(runtime.pool.thread_count()) {
  if (model.draft_head() != nullptr) return;
  throw Error(ErrorCode::kUnsupported,
              model.config().dspark
                  ? "drafts were asked for, but the model was loaded without its draft head (--draft off)"
                  : "drafts were asked for, but the checkpoint has no draft head (mtp.*); use --draft off");
}

/// The token `ahead` of each request, from its row of logits, all at once.
void ModelDrafter::draft_tokens(std::span<const DraftingRequest> requests, Span2d<float> logits, size_t ahead,
                                std::vector<std::optional<DraftedToken>>& tokens) {
  tokens.assign(requests.size(), std::nullopt);
  const auto draft_one = [&](size_t index, size_t worker) {
    const DraftingRequest& request = requests[index];
    std::span<float> weights;
    if (!request.continuation->options().sampling.is_greedy())
      weights = request.drafts->weights_for_next(logits.cols, request.most);
    tokens[index] = request.continuation->draft(samplers_[worker], logits.row(index), ahead, weights);
  };
  try {
    runtime_.pool.run(requests.size(), draft_one);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("draft head (--draft off does without it): {}", error.what()));
  }
}

void ModelDrafter::propose(std::span<const DraftingRequest> all_requests) {
  std::vector<DraftingRequest> requests;
  std::vector<DraftRequest> blocks_of;
  std::vector<int32_t> previous;
  for (const DraftingRequest& request : all_requests) {
    if (request.most == 0 || !has_draft_rows(*request.state)) continue;
    requests.push_back(request);
    requests.back().most = std::min(request.most, model_.draft_head()->block);
    blocks_of.push_back({request.state, request.last_token});
  }
  if (requests.empty()) return;
  const Arena::Scope scope(arena_);
  const size_t block = model_.draft_head()->block;
  const DraftBlocks blocks = run_draft_blocks(model_, runtime_, arena_, blocks_of);
  std::vector<size_t> rows(requests.size());  // of the requests that go on
  for (size_t i = 0; i < requests.size(); ++i) {
    rows[i] = i * block;
    previous.push_back(requests[i].last_token);
  }
  const DraftsUnderWay under_way(requests);
  std::vector<double> survival(requests.size(), 1.0);
  std::vector<std::optional<DraftedToken>> tokens;
  for (size_t ahead = 0; !requests.empty(); ++ahead) {
    const Arena::Scope step(arena_);
    const Span2d<float> logits = arena_.matrix(requests.size(), blocks.logits.cols);
    const Span2d<float> hidden = arena_.matrix(requests.size(), blocks.hidden.cols);
    for (size_t i = 0; i < requests.size(); ++i) {
      std::ranges::copy(blocks.logits.row(rows[i] + ahead), logits.row(i).begin());
      std::ranges::copy(blocks.hidden.row(rows[i] + ahead), hidden.row(i).begin());
    }
    const std::vector<float> confidences = draft_confidences(model_, runtime_, arena_, hidden, previous);
    add_markov_bias(model_, runtime_, arena_, previous, logits);
    draft_tokens(requests, logits, ahead, tokens);
    size_t kept = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      if (!tokens[i]) continue;
      const double confidence = 1 / (1 + std::exp(-static_cast<double>(confidences[i])));
      if (std::isnan(confidence))
        throw Error(ErrorCode::kNumeric, "draft head (--draft off does without it): its confidence is not a number");
      requests[i].continuation->follow_draft(tokens[i]->id);
      requests[i].drafts->add(*tokens[i], survival[i] * confidence);
      if (requests[i].drafts->size() == requests[i].most) continue;
      requests[kept] = requests[i];
      rows[kept] = rows[i];
      previous[kept] = tokens[i]->id;
      survival[kept] = survival[i] * confidence;
      ++kept;
    }
    requests.resize(kept);
    previous.resize(kept);
  }
}

size_t drafts_limit(const Model& model, const SequenceState& state, const Continuation& continuation) {
  // The step reads the last token and the drafts, and takes one token more than drafts stand.
  int64_t limit = continuation.context_max() - state.length() - 2;
  if (const std::optional<int64_t>& max_tokens = continuation.options().max_tokens)
    limit = std::min(limit, *max_tokens - continuation.count() - 1);
  limit = std::min(limit, state.layout().rollback_max - 1);
  if (model.draft_head() != nullptr) limit = std::min(limit, static_cast<int64_t>(model.draft_head()->block));
  return static_cast<size_t>(std::max(limit, int64_t{0}));
}

void DraftCounts::note(size_t proposed_count, size_t accepted_count) {
  if (proposed.size() < proposed_count) {
    proposed.resize(proposed_count);
    accepted.resize(proposed_count);
  }
  for (size_t i = 0; i < proposed_count; ++i) {
    ++proposed[i];
    if (i < accepted_count) ++accepted[i];
  }
  if (proposed_count > 0) ++rounds;
}

void DraftCounts::add(const DraftCounts& other) {
  if (proposed.size() < other.proposed.size()) {
    proposed.resize(other.proposed.size());
    accepted.resize(other.proposed.size());
  }
  for (size_t i = 0; i < other.proposed.size(); ++i) {
    proposed[i] += other.proposed[i];
    accepted[i] += other.accepted[i];
  }
  rounds += other.rounds;
}

int64_t DraftCounts::accepted_total() const {
  return std::accumulate(accepted.begin(), accepted.end(), int64_t{0});
}

int64_t DraftCounts::rejected_total() const {
  return std::accumulate(proposed.begin(), proposed.end(), int64_t{0}) - accepted_total();
}

std::vector<InputToken> Speculation::begin(const SequenceState& state, int32_t last_token) {
  TIDEPOOL_CHECK(!is_under_way(), "a speculation is settled before the next one");
  begin_ = state.length();
  row_ = 0;
  taken_ = 0;
  goes_on_ = true;
  std::vector<InputToken> tokens = {{last_token, false}};
  for (size_t i = 0; i < drafts_.size(); ++i)
    tokens.push_back({drafts_.token(i).id, false});
  return tokens;
}

GenerationStep Speculation::take(Continuation& continuation, Sampler& sampler, std::span<const float> logits) {
  TIDEPOOL_CHECK(is_under_way() && goes_on_, "a token is taken from a row that was read");
  const DraftedToken* drafted = row_ < drafts_.size() ? &drafts_.token(row_) : nullptr;
  GenerationStep step = continuation.take(sampler, logits, begin_ + 1 + static_cast<int64_t>(row_), drafted);
  ++taken_;
  const bool stands = drafted != nullptr && step.token->id == drafted->id;
  if (stands) ++row_;
  goes_on_ = stands && !step.finish;
  return step;
}

size_t Speculation::settle(SequenceState& state, DraftCounts& counts) {
  TIDEPOOL_CHECK(is_under_way(), "there is something to settle");
  // The last token taken, drafted or not, counts as not read; before the first one was taken, that is the token the
  // step began with.
  state.rollback(taken_ == 0 ? begin_ : begin_ + taken_);
  counts.note(drafts_.size(), row_);
  begin_ = -1;
  goes_on_ = false;
  const size_t accepted = row_;
  drafts_.clear();
  return accepted;
}

}  // namespace tidepool
