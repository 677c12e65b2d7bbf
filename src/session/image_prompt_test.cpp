// Images of requests on the tiny golden checkpoint: from data URLs to features, in conversations and in the service.
#include "session/image_prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "session/conversation.h"
#include "session/image_features.h"
#include "session/image_source.h"
#include "session/service_test_support.h"

namespace tidepool {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::unique_ptr<LoadedModel> load(const std::string& name) {
  LoadOptions options;
  options.folder = std::filesystem::path(TIDEPOOL_GOLDEN_DIR) / name;
  options.threads = 2;
  return LoadedModel::load(options);
}

/// A picture file of the decoders' tests. "rgb.png" and "full.jpg" are of one size.
std::string sample(const std::string& name) {
  const std::string extension = name.substr(name.rfind('.') + 1);
  const std::string folder = (extension == "jpg" ? "jpeg" : extension) + "_fuzz";
  return read_file(std::filesystem::path(TIDEPOOL_SOURCE_DIR) / "tests/corpus" / folder / name, 1U << 20);
}

ContentBlock image(const std::string& file) {
  return make_image_block(std::as_bytes(std::span(file)));
}
ContentBlock text(const std::string& words) {
  ContentBlock block;
  block.text = words;
  return block;
}

ChatMessage user(std::vector<ContentBlock> content) {
  ChatMessage message;
  message.content = std::move(content);
  return message;
}

ChatRequest request_of(std::vector<ChatMessage> messages) {
  ChatRequest request;
  request.is_thinking = false;
  request.messages = std::move(messages);
  return request;
}

/// Pseudo-random words: long enough that blocks of KV end in front of what follows.
std::string words(size_t count) {
  std::string result;
  for (size_t i = 0; i < count; ++i)
    result += static_cast<char>('a' + (i * i + i / 3) % 26);
  return result;
}

class ImagePrompt : public testing::Test {
 protected:
  static void SetUpTestSuite() { shared_model = load("ckpt"); }
  static void TearDownTestSuite() { shared_model.reset(); }
  static const LoadedModel& model() { return *shared_model; }

  static TurnRequest turn_of(const ChatRequest& request, int64_t max_tokens = 4) {
    std::vector<std::string> missing;
    TurnRequest turn = make_chat_turn(model(), request, missing);
    turn.generation.max_tokens = max_tokens;
    turn.generation.sampling.temperature = 0;
    turn.generation.stop_ids.clear();
    turn.generation.sampling.top_logprobs = 5;
    return turn;
  }
  static KvCacheOptions roomy() {
    KvCacheOptions options;
    options.ram_bytes = size_t{64} << 20;
    options.snapshot_ram_bytes = size_t{64} << 20;
    return options;
  }
  static std::string error_of(ChatRequest request, const RequestImageLimits& limits = {}) {
    try {
      (void)take_images(model(), request, limits);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.what();
    }
    ADD_FAILURE() << "nothing was refused";
    return "";
  }

  inline static std::unique_ptr<LoadedModel> shared_model;
};

/// Logits would be the sharpest; log-probabilities of the likeliest tokens say the same.
std::vector<double> logprobs_of(const TurnResult& result) {
  std::vector<double> values;
  for (const SampledToken& token : result.tokens) {
    for (const TokenLogprob& one : token.logprobs->top)
      values.push_back(one.logprob);
  }
  return values;
}

TEST_F(ImagePrompt, PlaceholdersBecomeSpansOfTheirPictures) {
  ChatRequest request = request_of({user({text("a"), image(sample("rgb.png")), text("b"), image(sample("part.gif"))})});
  const TurnRequest turn = turn_of(request);
  ASSERT_EQ(turn.images.spans.size(), 2U);
  const auto id = static_cast<int32_t>(*model().config().image_token_id);
  size_t positions = 0;
  for (size_t i = 0; i < 2; ++i) {
    const ImageSpan& span = turn.images.spans[i];
    EXPECT_EQ(span.end - span.begin, turn.images.pictures[i]->prepared.plan.tokens());
    EXPECT_EQ(span.digest, turn.images.pictures[i]->digest);
    for (int64_t p = span.begin; p < span.end; ++p)
      EXPECT_EQ(turn.prompt[static_cast<size_t>(p)], id);
    positions += static_cast<size_t>(span.end - span.begin);
  }
  EXPECT_EQ(std::ranges::count(turn.prompt, id), static_cast<int64_t>(positions));
  EXPECT_LT(turn.images.spans[0].end, turn.images.spans[1].begin);
}

TEST_F(ImagePrompt, PicturesOfToolResultsKeepTheirOrderWhenResultsAreSorted) {
  ChatMessage calls;
  calls.role = ChatRole::kAssistant;
  for (const char* call_id : {"first", "second"}) {
    ToolCall call;
    call.id = call_id;
    call.name = "look";
    call.arguments = Json::make_object();
    calls.tool_calls.push_back(call);
  }
  const auto result = [](const std::string& call_id, const std::string& file) {
    ChatMessage message = user({image(sample(file))});
    message.role = ChatRole::kTool;
    message.tool_call_id = call_id;
    return message;
  };
  // Sent the wrong way round: the prompt has them in the order of the calls.
  const TurnRequest turn =
      turn_of(request_of({user({text("go")}), calls, result("second", "rgb.png"), result("first", "full.jpg")}));
  ASSERT_EQ(turn.images.pictures.size(), 2U);
  const std::string jpg = sample("full.jpg");
  const std::string png = sample("rgb.png");
  EXPECT_EQ(turn.images.pictures[0]->digest, load_image(model(), std::as_bytes(std::span(jpg)), "a")->digest);
  EXPECT_EQ(turn.images.pictures[1]->digest, load_image(model(), std::as_bytes(std::span(png)), "b")->digest);
}

TEST_F(ImagePrompt, DigestsTellPixelsAndSizesApartAndNotFiles) {
  const auto digest = [&](const std::string& name) {
    const std::string file = sample(name);
    return load_image(model(), std::as_bytes(std::span(file)), name)->digest;
  };
  EXPECT_EQ(digest("rgb.png"), digest("lossless.webp"));  // the same pixels
  EXPECT_NE(digest("rgb.png"), digest("full.jpg"));
  EXPECT_NE(image_digest(RgbImage(4, 2)), image_digest(RgbImage(2, 4)));
}

TEST_F(ImagePrompt, ErrorsNameTheFieldAndTheRemedy) {
  const auto of = [](ContentBlock block) {
    return request_of({user({text("x")}), user({text("y"), std::move(block)})});
  };
  ContentBlock link;
  link.kind = ContentBlock::Kind::kImage;
  link.image = parse_json(R"({"type": "image", "url": "https://example.com/x.png"})");
  EXPECT_THAT(error_of(of(link)), StartsWith("messages[1].content[1]: links are not followed"));
  EXPECT_THAT(error_of(of(image("no picture"))), StartsWith("messages[1].content[1]: not a JPEG, PNG, WebP or GIF"));
  EXPECT_THAT(error_of(of(image(sample("rgb.png").substr(0, 900)))),
              StartsWith("messages[1].content[1]: the PNG is damaged or cut short"));
  RequestImageLimits limits;
  limits.file.bytes_max = 100;
  EXPECT_THAT(error_of(of(image(sample("rgb.png"))), limits), HasSubstr("the limit is 100"));
  limits = {};
  limits.file.pixels_max = 100;
  EXPECT_THAT(error_of(of(image(sample("rgb.png"))), limits), HasSubstr("scale it down"));
  limits = {};
  limits.count_max = 1;
  EXPECT_THAT(error_of(request_of({user({image(sample("one.png")), image(sample("one.png"))})}), limits),
              StartsWith("messages[0].content[1]: a request may have 1 images"));
  limits = {};
  limits.pixels_max = 2000;  // rgb.png has 1,073
  EXPECT_THAT(error_of(request_of({user({image(sample("rgb.png")), image(sample("rgb.png"))})}), limits),
              StartsWith("messages[0].content[1]: the images up to this one have 2146 pixels"));
}

TEST_F(ImagePrompt, MorePicturesThanAnyContextHoldsAreRefusedOnTheWay) {
  std::vector<ContentBlock> many(200, image(sample("one.png")));
  EXPECT_THAT(error_of(request_of({user(std::move(many))})), HasSubstr("the context has 1024"));
}

TEST_F(ImagePrompt, AModelWithoutEyesRefusesPicturesClearly) {
  const std::unique_ptr<LoadedModel> blind = load("ckpt_textonly");
  ChatRequest request = request_of({user({text("what is this?"), image(sample("rgb.png"))})});
  try {
    (void)take_images(*blind, request);
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), StartsWith("messages[0].content[1]: this model cannot see images"));
  }
  // And goes on with text as ever.
  ChatRequest plain = request_of({user({text("hello")})});
  EXPECT_TRUE(take_images(*blind, plain).empty());
  std::vector<std::string> missing;
  TurnRequest turn = make_chat_turn(*blind, plain, missing);
  turn.generation.max_tokens = 2;
  KvCache cache(blind->model().kv_layout(), roomy());
  EXPECT_EQ(Conversation(*blind, cache).run(turn).tokens.size(), 2U);
}

TEST_F(ImagePrompt, AnyChunkSizeGivesTheSameAnswer) {
  const ChatRequest request =
      request_of({user({text("a"), image(sample("rgb.png")), text("b"), image(sample("part.gif"))})});
  std::vector<double> expected;
  for (const size_t chunk : {512U, 1U, 3U, 7U, 16U}) {
    TurnRequest turn = turn_of(request);
    turn.generation.chunk = chunk;
    KvCache cache(model().model().kv_layout(), roomy());
    const std::vector<double> actual = logprobs_of(Conversation(model(), cache).run(turn));
    if (expected.empty()) expected = actual;
    EXPECT_EQ(actual, expected) << "chunks of " << chunk;
  }
}

TEST_F(ImagePrompt, TheAnswerDependsOnThePicture) {
  const auto answer = [&](const std::string& file) {
    KvCache cache(model().model().kv_layout(), roomy());
    return logprobs_of(Conversation(model(), cache).run(turn_of(request_of({user({image(sample(file))})}))));
  };
  EXPECT_EQ(answer("rgb.png"), answer("lossless.webp"));
  EXPECT_NE(answer("rgb.png"), answer("interlaced.gif"));
}

/// Text of some blocks of KV, a picture, and text again.
ChatRequest long_request(const std::string& file, size_t words_before, const std::string& after) {
  return request_of({user({text(words(words_before)), image(sample(file)), text(after)})});
}

TEST_F(ImagePrompt, PicturesOfOneSizeNeverShareKv) {
  // The same ids position by position; only the pictures differ.
  const TurnRequest first = turn_of(long_request("rgb.png", 40, words(300)));
  const TurnRequest second = turn_of(long_request("full.jpg", 40, words(300)));
  ASSERT_EQ(first.prompt, second.prompt);
  const std::vector<InputToken> tokens = input_tokens(first.prompt, first.images.spans);
  const CacheDomain domain;
  const std::vector<BlockKey> a = block_chain(domain, {tokens, first.images.spans});
  const std::vector<BlockKey> b = block_chain(domain, {tokens, second.images.spans});
  ASSERT_GE(a.size(), 2U);
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_NE(a[i], b[i]) << "block " << i;

  KvCache shared(model().model().kv_layout(), roomy());
  Conversation conversation(model(), shared);
  (void)conversation.run(first);
  const TurnResult behind = conversation.run(second);
  EXPECT_LE(behind.cache.hit_tokens, first.images.spans[0].begin);
  KvCache fresh(model().model().kv_layout(), roomy());
  EXPECT_EQ(logprobs_of(behind), logprobs_of(Conversation(model(), fresh).run(second)));
}

TEST_F(ImagePrompt, AnImageSessionReusesItsKvLikeATextSession) {
  KvCache cache(model().model().kv_layout(), roomy());
  Conversation conversation(model(), cache);
  std::vector<ChatMessage> messages;
  int64_t missed_behind_the_first = 0;
  for (int turn = 0; turn < 5; ++turn) {
    messages.push_back(user({text("look"), image(sample(turn % 2 == 0 ? "rgb.png" : "part.gif"))}));
    const TurnRequest request = turn_of(request_of(messages), 3);
    const TurnResult result = conversation.run(request);
    if (turn > 0)
      missed_behind_the_first = std::max(missed_behind_the_first, result.cache.prompt_tokens - result.cache.hit_tokens);
    ChatMessage answer;
    answer.role = ChatRole::kAssistant;
    answer.content.push_back(text(result.completion.content.empty() ? "." : result.completion.content));
    messages.push_back(answer);
  }
  // What is new in a turn: the picture, some words around it, and at most the last answer read again.
  EXPECT_LE(missed_behind_the_first, 60);
}

/// Replays begin inside a span: windows of 16 positions in front of a block border that lies within the picture.
TEST_F(ImagePrompt, AResumeThatReplaysHalfASpanGivesWhatAFreshRunGives) {
  const auto make = [&](const std::string& after) {
    // Words so that the border of 128 tokens falls into the middle of the span.
    for (size_t count = 1; count < 400; ++count) {
      TurnRequest turn = turn_of(long_request("rgb.png", count, after));
      const ImageSpan span = turn.images.spans.front();
      if (span.begin < kBlockTokens - 5 && span.end > kBlockTokens + 3) return turn;
    }
    return TurnRequest{};
  };
  const TurnRequest first = make("one");
  TurnRequest second = make("two, which goes on differently");
  ASSERT_FALSE(first.prompt.empty());
  second.generation.replay = Replay::kExact;
  KvCacheOptions options = roomy();
  options.snapshot_ram_bytes = 0;  // blocks only, so that the windows must be replayed
  KvCache cache(model().model().kv_layout(), options);
  Conversation conversation(model(), cache);
  TurnRequest exact = first;
  exact.generation.replay = Replay::kExact;
  (void)conversation.run(exact);
  const TurnResult resumed = conversation.run(second);
  EXPECT_EQ(resumed.cache.hit_tokens, kBlockTokens);
  EXPECT_GT(resumed.cache.replayed_tokens, 0);
  KvCache fresh(model().model().kv_layout(), options);
  EXPECT_EQ(logprobs_of(resumed), logprobs_of(Conversation(model(), fresh).run(second)));
}

RequestImagePtr picture(const LoadedModel& model, const std::string& name) {
  const std::string file = sample(name);
  return load_image(model, std::as_bytes(std::span(file)), name);
}

TEST_F(ImagePrompt, FeaturesAreComputedOncePerPicture) {
  ImageFeatureCache cache(model().model(), model().runtime());
  const std::vector<RequestImagePtr> pictures = {picture(model(), "rgb.png"), picture(model(), "part.gif"),
                                                 picture(model(), "lossless.webp")};
  const std::vector<VisionFeaturesPtr> features = cache.get(pictures);
  EXPECT_EQ(features[0], features[2]);  // the same pixels in another file
  EXPECT_NE(features[0], features[1]);
  EXPECT_EQ(cache.stats().computed, 2U);
  EXPECT_EQ(cache.get(pictures), features);
  EXPECT_EQ(cache.stats().computed, 2U);
  EXPECT_EQ(cache.stats().hits, 3U);
}

TEST_F(ImagePrompt, FeatureMemoryIsBoundedAndTheLeastUsedGoFirst) {
  const RequestImagePtr a = picture(model(), "rgb.png");
  const RequestImagePtr b = picture(model(), "part.gif");
  const RequestImagePtr c = picture(model(), "one.png");
  const auto bytes = [&](const RequestImagePtr& p) {
    return static_cast<size_t>(p->prepared.plan.tokens()) * model().model().pass_shape().hidden * sizeof(float);
  };
  ImageFeatureCache cache(model().model(), model().runtime(), bytes(a) + std::max(bytes(b), bytes(c)));
  (void)cache.get({&a, 1});
  (void)cache.get({&b, 1});
  (void)cache.get({&a, 1});
  (void)cache.get({&c, 1});  // b goes
  EXPECT_LE(cache.stats().bytes, bytes(a) + std::max(bytes(b), bytes(c)));
  EXPECT_EQ(cache.stats().pictures, 2U);
  (void)cache.get({&a, 1});
  EXPECT_EQ(cache.stats().computed, 3U);
  (void)cache.get({&b, 1});
  EXPECT_EQ(cache.stats().computed, 4U);
  ImageFeatureCache none(model().model(), model().runtime(), 0);
  EXPECT_NE(none.get({&a, 1}).front(), nullptr);
  EXPECT_EQ(none.stats().bytes, 0U);
}

TEST_F(ImagePrompt, RowsOfAPromptAreThoseOfTheSpansThatAreTouched) {
  const TurnRequest turn =
      turn_of(request_of({user({text("a"), image(sample("rgb.png")), text("b"), image(sample("part.gif"))})}));
  const auto cache = std::make_shared<ImageFeatureCache>(model().model(), model().runtime(), 0);
  PromptImageRows rows(cache, turn.images);
  const ImageSpan first = turn.images.spans[0];
  const ImageSpan second = turn.images.spans[1];
  EXPECT_TRUE(rows.rows(0, first.begin).empty());
  EXPECT_EQ(rows.rows(0, first.begin + 1).size(), 1U);
  EXPECT_EQ(cache->stats().computed, 1U);
  // The span goes on: nothing is computed again, though the cache keeps nothing.
  EXPECT_EQ(rows.rows(first.begin + 1, second.begin + 1).size(), 2U);
  EXPECT_EQ(cache->stats().computed, 2U);
  const std::span<const ImageRows> last = rows.rows(second.begin + 1, second.end);
  ASSERT_EQ(last.size(), 1U);
  EXPECT_EQ(last[0].begin, second.begin);
  EXPECT_EQ(cache->stats().computed, 2U);
}

TEST_F(ImagePrompt, TheServiceGivesWhatAConversationGives) {
  service_testing::RoomyCheckpoint checkpoint;
  const std::shared_ptr<const LoadedModel> roomy_model = service_testing::load_roomy_model(checkpoint);
  const ChatRequest chat = request_of({user({text("see"), image(sample("rgb.png")), image(sample("part.gif"))})});
  std::vector<std::string> missing;
  TurnRequest turn = make_chat_turn(*roomy_model, chat, missing);
  turn.generation.max_tokens = 6;
  turn.generation.sampling.temperature = 0;
  KvCache cache(roomy_model->model().kv_layout(), roomy());
  const TurnResult expected = Conversation(*roomy_model, cache).run(turn);

  EngineServiceOptions options;
  options.kv = roomy();
  const std::unique_ptr<Service> service = make_engine_service(roomy_model, std::move(options));
  ServiceRequest request;
  request.prompt = chat;
  request.sampling.temperature = 0;
  request.max_tokens = 6;
  EXPECT_EQ(service->encode(request), turn.prompt);
  for (int round = 0; round < 2; ++round) {  // the second time out of the cache
    service_testing::RecordingListener listener;
    PreparedRequest prepared = service->prepare(request);
    EXPECT_EQ(prepared.images.spans, turn.images.spans);
    const Service::Submitted submitted = service->submit(std::move(prepared), listener);
    ASSERT_TRUE(std::holds_alternative<std::unique_ptr<Service::Ticket>>(submitted));
    listener.wait();
    EXPECT_FALSE(listener.error.has_value());
    std::vector<int32_t> ids;
    ids.reserve(expected.tokens.size());
    for (const SampledToken& token : expected.tokens)
      ids.push_back(token.id);
    EXPECT_EQ(listener.choices.at(0).ids, ids) << "round " << round;
  }
}

TEST_F(ImagePrompt, PicturesTakeMemoryOnceAndGiveItBack) {
  RequestImageLimits limits;
  limits.memory = std::make_shared<PictureMemory>(size_t{1} << 30);
  ChatRequest request = request_of({user({image(sample("rgb.png")), image(sample("rgb.png"))})});
  std::vector<RequestImagePtr> pictures = take_images(model(), request, limits);
  const size_t bytes = pictures.at(0)->prepared.canvas.pixels.size();
  EXPECT_EQ(pictures.at(0), pictures.at(1));
  EXPECT_EQ(limits.memory->bytes(), bytes);
  pictures.clear();
  EXPECT_EQ(limits.memory->bytes(), 0U);
  limits.memory = std::make_shared<PictureMemory>(bytes - 1);
  EXPECT_THAT(error_of(request_of({user({image(sample("rgb.png"))})}), limits),
              StartsWith("messages[0].content[0]: the images up to this one take"));
  EXPECT_EQ(limits.memory->bytes(), 0U);
}

/// While the pictures of others fill the memory, one more request comes too early; it can come back.
TEST_F(ImagePrompt, TheServiceIsBusyWhilePicturesOfOthersFillTheMemory) {
  ChatRequest chat = request_of({user({text("see"), image(sample("rgb.png"))})});
  ServiceRequest request;
  request.prompt = chat;
  request.max_tokens = 1;
  service_testing::RoomyCheckpoint checkpoint;
  EngineServiceOptions options;
  options.picture_bytes = take_images(model(), chat).at(0)->prepared.canvas.pixels.size();
  const std::unique_ptr<Service> service =
      make_engine_service(service_testing::load_roomy_model(checkpoint), std::move(options));
  std::optional<PreparedRequest> waiting = service->prepare(request);
  const auto expect_busy = [](const auto& call) {
    try {
      call();
      FAIL() << "there was memory";
    } catch (const ServiceBusy& busy) {
      EXPECT_EQ(busy.busy().reason, Busy::Reason::kNoMemory);
      EXPECT_GE(busy.busy().retry_after_s, 1);
      EXPECT_THAT(busy.what(), StartsWith("messages[0].content[1]: "));
    }
  };
  expect_busy([&] { (void)service->prepare(request); });
  expect_busy([&] { (void)service->encode(request); });
  waiting.reset();
  service_testing::RecordingListener listener;
  const Service::Submitted taken = service->submit(service->prepare(request), listener);
  ASSERT_TRUE(std::holds_alternative<std::unique_ptr<Service::Ticket>>(taken));
  listener.wait();
  EXPECT_FALSE(listener.error);
}

TEST_F(ImagePrompt, TheServiceRefusesABadPictureByItsField) {
  service_testing::RoomyCheckpoint checkpoint;
  const std::unique_ptr<Service> service =
      make_engine_service(service_testing::load_roomy_model(checkpoint), EngineServiceOptions{});
  ServiceRequest request;
  request.prompt = request_of({user({text("x"), image("nothing")})});
  try {
    (void)service->prepare(request);
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), StartsWith("messages[0].content[1]: "));
  }
}

}  // namespace
}  // namespace tidepool
