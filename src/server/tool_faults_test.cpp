// Families of faults that servers for this model have had with tool calls and the end of streams: recorded outputs in
// many tokenisations, read by every chat dialect over real connections, streamed and not.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/dialect_reader.h"
#include "text/dsml.h"

namespace tidepool {
namespace {

using server_testing::at;
using server_testing::Client;
using server_testing::Dialect;
using server_testing::kWays;
using server_testing::read_answer;
using server_testing::Seen;
using server_testing::Way;
using testing::HasSubstr;
using testing::Not;

class ToolFaultsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    checkpoint = std::make_unique<service_testing::RoomyCheckpoint>();
    LoadOptions options;
    options.folder = checkpoint->path();
    options.threads = 1;  // hundreds of outputs of a tiny model: a second thread only waits
    model = LoadedModel::load(options);
  }
  static void TearDownTestSuite() {
    model.reset();
    checkpoint.reset();
  }
  ~ToolFaultsTest() override { server_.reset(); }
  ToolFaultsTest() = default;
  ToolFaultsTest(const ToolFaultsTest&) = delete;
  ToolFaultsTest& operator=(const ToolFaultsTest&) = delete;

  /// A recorded output, as the tokens of its pieces: each piece is encoded by itself.
  struct Output {
    std::vector<std::string> pieces;
    bool is_thinking = false;
    std::string fields{};  ///< more of the request, the same in all dialects
  };
  static Output output(std::string text) { return {{std::move(text)}}; }
  /// `text` cut at random places, some of them inside of characters.
  Output chopped(const std::string& text) {
    Output result;
    const size_t longest = 1 + random_() % 24;
    for (std::string_view rest = text; !rest.empty();) {
      result.pieces.emplace_back(rest.substr(0, 1 + random_() % longest));
      rest.remove_prefix(result.pieces.back().size());
    }
    return result;
  }

  static std::vector<int32_t> ids_of(const Output& output) {
    std::vector<int32_t> ids;
    for (const std::string& piece : output.pieces) {
      const bool is_border = piece == dsml::kThinkEnd;
      const std::vector<int32_t> more = is_border
                                            ? std::vector{model->tokenizer().find_added_token(dsml::kThinkEnd).value()}
                                            : model->tokenizer().encode_plain(piece);
      ids.insert(ids.end(), more.begin(), more.end());
    }
    return ids;
  }

  /// A server that answers "#i#" with outputs[i].
  void serve(const std::vector<Output>& outputs) {
    std::vector<std::vector<int32_t>> ids;
    ids.reserve(outputs.size());
    for (const Output& output : outputs)
      ids.push_back(ids_of(output));
    serve_ids(ids);
  }
  void serve_ids(const std::vector<std::vector<int32_t>>& outputs) {
    const std::filesystem::path script = checkpoint->path() / "script.jsonl";
    {
      std::ofstream file(script);
      for (size_t i = 0; i < outputs.size(); ++i)
        file << fmt::format("{{\"match\": \"#{}#\", \"ids\": [{}]}}\n", i, fmt::join(outputs[i], ", "));
    }
    EngineServiceOptions options;
    options.kv.emplace();
    options.kv->ram_bytes = size_t{256} << 20;
    options.script = script;
    // All at once: a step of many costs little more than a step of one.
    options.scheduler.max_num_seqs = 64;
    serve_with(make_engine_service(model, options));
  }
  void serve_with(std::unique_ptr<Service> service) {
    server_.reset();
    service_ = std::move(service);
    ApiServerOptions api;
    api.http.port = 0;
    api.model_names = {"tiny"};
    server_ = std::make_unique<ApiServer>(std::move(api));
    server_->set_service(*service_);
  }
  [[nodiscard]] uint16_t port() const { return server_->http().port(); }

  static std::string path_of(const Way& way) {
    switch (way.dialect) {
      case Dialect::kChat: return "/v1/chat/completions";
      case Dialect::kMessages: return "/v1/messages";
      case Dialect::kResponses: return "/v1/responses";
    }
    return "";
  }
  /// A request with the tools f and g, of any parameters.
  static std::string body_of(const Way& way, const std::string& text, bool is_thinking, const std::string& fields) {
    const std::string stream = way.is_stream ? "true" : "false";
    std::string body = R"({"model":"tiny","temperature":0,"stream":)" + stream + fields;
    // Longer than any output here; memory for it is promised to all.
    if (fields.find("max_tokens") == std::string::npos) body += R"(,"max_tokens":700,"max_output_tokens":700)";
    const std::string thinking = is_thinking ? R"("thinking":{"type":"enabled"})" : R"("thinking":{"type":"disabled"})";
    const std::string messages = R"("messages":[{"role":"user","content":")" + text + R"("}],)";
    switch (way.dialect) {
      case Dialect::kChat:
        return body + "," + messages + thinking +
               R"(,"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}]})";
      case Dialect::kMessages:
        return body + "," + messages + thinking +
               R"(,"tools":[{"name":"f","input_schema":{"type":"object"}},)"
               R"({"name":"g","input_schema":{"type":"object"}}]})";
      case Dialect::kResponses:
        return body + R"(,"input":")" + text + R"(","reasoning":{"effort":)" +
               (is_thinking ? R"("low")" : R"("none")") +
               R"(},"tools":[{"type":"function","name":"f"},{"type":"function","name":"g"}]})";
    }
    return "";
  }

  /// The first three outputs, each asked for in all of the ways, and the others as streams; in order, by way. (A few
  /// leave the beginning of the prompt, which is most of it, to the others; and a stream shows all that a whole answer
  /// does.)
  [[nodiscard]] std::vector<std::vector<Seen>> ask_all(const std::vector<Output>& outputs,
                                                       std::span<const Way> ways = kWays) const {
    constexpr size_t kFirst = 3;
    std::vector<std::vector<Seen>> seen;
    for (const bool is_stream : {false, true}) {
      std::vector<Way> some;
      std::ranges::copy_if(ways, std::back_inserter(some), [&](const Way& way) { return way.is_stream == is_stream; });
      std::vector<std::vector<Seen>> more(some.size());
      ask_range(outputs, 0, std::min(outputs.size(), kFirst), some, more);
      if (is_stream) ask_range(outputs, std::min(outputs.size(), kFirst), outputs.size(), some, more);
      std::ranges::move(more, std::back_inserter(seen));
    }
    return seen;
  }
  /// Asks for all of them, and expects of each what stands at its place.
  void expect_all(const std::vector<Output>& outputs, const std::vector<Seen>& expected,
                  std::span<const Way> ways = kWays) const {
    for (const std::vector<Seen>& seen : ask_all(outputs, ways)) {
      for (size_t i = 0; i < seen.size(); ++i)
        EXPECT_EQ(seen[i], expected[i]) << i;
    }
  }

  /// outputs[begin] to outputs[end - 1], all at once.
  void ask_range(const std::vector<Output>& outputs, size_t begin, size_t end, std::span<const Way> ways,
                 std::vector<std::vector<Seen>>& seen) const {
    std::vector<std::unique_ptr<Client>> clients;
    clients.reserve(ways.size() * (end - begin));
    for (const Way& way : ways) {
      for (size_t i = begin; i < end; ++i) {
        clients.push_back(std::make_unique<Client>(port()));
        const std::string body = body_of(way, fmt::format("#{}#", i), outputs[i].is_thinking, outputs[i].fields);
        clients.back()->send_request("POST", path_of(way), body);
      }
    }
    for (size_t i = 0; i < clients.size(); ++i) {
      const size_t way = i / (end - begin);
      seen[way].push_back(read_answer(ways[way], clients[i]->read_response()));
    }
  }

  std::mt19937 random_{20261130};
  inline static std::unique_ptr<service_testing::RoomyCheckpoint> checkpoint;
  inline static std::shared_ptr<const LoadedModel> model;

 private:
  std::unique_ptr<Service> service_;
  std::unique_ptr<ApiServer> server_;
};

// --- tool calls -----------------------------------------------------------------------------------------------------

constexpr std::string_view kTwoCalls =
    "I look.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n"
    "<｜DSML｜ parameter name=\"a\" string=\"true\">x \"y\" <b</｜DSML｜ parameter>\n"
    "<｜DSML｜ parameter name=\"b\" string=\"false\">[1, {\"c\": null}]</｜DSML｜ parameter>\n"
    "<｜DSML｜ parameter name=\"c\" string=\"true\">z</｜DSML｜ parameter>\n"
    "</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"g\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
const Seen kTwoCallsSeen = {
    "", "I look.", {{"f", R"({"a": "x \"y\" <b", "b": [1, {"c": null}], "c": "z"})"}, {"g", "{}"}}, "calls"};

/// Known fault 10: the tags of this model, with their space, and those of the one before, in any tokens.
TEST_F(ToolFaultsTest, CallsAreReadInAnyTokensInEveryDialect) {
  const std::string text(kTwoCalls);
  std::string older = text;
  for (size_t place = older.find("｜DSML｜ "); place != std::string::npos; place = older.find("｜DSML｜ ", place))
    older.erase(place + std::string_view("｜DSML｜").size(), 1);
  std::vector<Output> outputs = {output(text), output(older)};
  for (size_t cut = 1; cut < text.size(); cut += 97)
    outputs.push_back({{text.substr(0, cut), text.substr(cut)}});
  for (int i = 0; i < 4; ++i)
    outputs.push_back(chopped(i % 2 == 0 ? older : text));
  serve(outputs);
  EXPECT_THAT(ask_all(outputs), testing::Each(testing::Each(kTwoCallsSeen)));
}

/// Known fault 13: whichever closing tag is missing, the next parameter does not become a part of the value.
TEST_F(ToolFaultsTest, AMissingCloserSwallowsNothing) {
  std::vector<Output> outputs;
  for (const std::string_view closer : {"</｜DSML｜ parameter>", "</｜DSML｜ invoke>", "</｜DSML｜ calls>"}) {
    for (size_t place = kTwoCalls.find(closer); place != std::string_view::npos;
         place = kTwoCalls.find(closer, place + 1)) {
      std::string text(kTwoCalls);
      outputs.push_back(chopped(text.erase(place, closer.size())));
    }
  }
  ASSERT_EQ(outputs.size(), 6U);
  serve(outputs);
  EXPECT_THAT(ask_all(outputs), testing::Each(testing::Each(kTwoCallsSeen)));
}

/// Known fault 14: a value may end in any part of its closing tag, wherever the tokens are cut.
TEST_F(ToolFaultsTest, AValueMayEndInAnyPartOfItsCloser) {
  std::vector<Output> outputs;
  std::vector<Seen> expected;
  for (size_t bytes = 0; bytes < dsml::kClose.size(); ++bytes) {
    // Whole characters: a value is a JSON string.
    if (bytes > 0 && (static_cast<unsigned char>(dsml::kClose[bytes]) & 0xC0U) == 0x80U) continue;
    const std::string value = "2>&1" + std::string(dsml::kClose.substr(0, bytes));
    outputs.push_back(
        chopped("<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" string=\"true\">" +
                value + "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"));
    expected.push_back({"", "", {{"f", R"({"a": ")" + value + "\"}"}}, "calls"});
  }
  serve(outputs);
  expect_all(outputs, expected);
}

/// Known fault 16: calls without their outer tag, or under another name, are calls; of a block cut short nothing shows.
TEST_F(ToolFaultsTest, BareCallsAreCallsAndCutOnesShowNothing) {
  const std::string text(kTwoCalls);
  const size_t invoke = text.find("<｜DSML｜ invoke");
  const std::string bare = "I look.\n\n" + text.substr(invoke);
  std::string renamed = text;
  for (size_t place = renamed.find(" calls>"); place != std::string::npos; place = renamed.find(" calls>", place + 1))
    renamed.replace(place, 7, "function_calls>");
  std::vector<Output> outputs = {output(bare), chopped(bare), output(renamed), chopped(renamed)};
  serve(outputs);
  EXPECT_THAT(ask_all(outputs), testing::Each(testing::Each(kTwoCallsSeen)));

  // The end of the turn, or the limit, inside of the block.
  outputs = {{{text}, false, R"(,"max_tokens":60,"max_output_tokens":60)"}};
  for (size_t cut = text.find("<｜DSML｜ calls>") + 1; cut < text.size(); cut += 83)
    outputs.push_back(output(text.substr(0, cut)));
  serve(outputs);
  for (const std::vector<Seen>& seen : ask_all(outputs)) {
    for (const Seen& each : seen)
      EXPECT_THAT(each.content, Not(HasSubstr("DSML")));
    EXPECT_EQ(seen.front().end, "length");
  }
}

/// Known fault 16, too: tags dropped, repeated and swapped.
TEST_F(ToolFaultsTest, DamagedMarkupNeverShowsAsContent) {
  std::vector<std::string> parts;
  for (std::string_view rest = kTwoCalls; !rest.empty();) {
    const size_t end = std::min(rest.find('>') + 1, rest.size());
    parts.emplace_back(rest.substr(0, end));
    rest.remove_prefix(end);
  }
  std::vector<Output> outputs;
  for (int round = 0; round < 10; ++round) {
    std::vector<std::string> damaged = parts;
    for (int edits = 0; edits < 3; ++edits) {
      const size_t place = random_() % damaged.size();
      switch (random_() % 3) {
        case 0: damaged.erase(damaged.begin() + static_cast<ptrdiff_t>(place)); break;
        case 1: damaged.insert(damaged.begin() + static_cast<ptrdiff_t>(place), damaged[place]); break;
        default: std::swap(damaged[place], damaged[random_() % damaged.size()]);
      }
    }
    outputs.push_back(chopped(fmt::format("{}", fmt::join(damaged, ""))));
  }
  serve(outputs);
  for (const std::vector<Seen>& all : ask_all(outputs)) {
    for (const Seen& seen : all)
      EXPECT_THAT(seen.content, Not(HasSubstr("DSML"))) << testing::PrintToString(seen);
  }
}

/// Known fault 11: what the model is forced to begins with the block's own tag; nothing is replayed here.
TEST_F(ToolFaultsTest, ForcedCallsAreCallsInEveryDialect) {
  EngineServiceOptions options;
  options.kv.emplace();
  options.kv->ram_bytes = size_t{64} << 20;
  serve_with(make_engine_service(model, options));
  const std::string schema =
      R"({"type":"object","properties":{"n":{"type":"integer","minimum":0,"maximum":99}},"required":["n"]})";
  const auto tools = [&](const Way& way) -> std::string {
    switch (way.dialect) {
      case Dialect::kChat:
        return R"("messages":[{"role":"user","content":"x"}],"thinking":{"type":"disabled"},"tool_choice":"required",)"
               R"("parallel_tool_calls":false,"tools":[{"type":"function","function":{"name":"f","parameters":)" +
               schema + "}}]}";
      case Dialect::kMessages:
        return R"("max_tokens":4000,"messages":[{"role":"user","content":"x"}],"thinking":{"type":"disabled"},)"
               R"("tool_choice":{"type":"any","disable_parallel_tool_use":true},"tools":[{"name":"f","input_schema":)" +
               schema + "}]}";
      case Dialect::kResponses:
        return R"("input":"x","reasoning":{"effort":"none"},"tool_choice":"required","parallel_tool_calls":false,)"
               R"("tools":[{"type":"function","name":"f","parameters":)" +
               schema + "}]}";
    }
    return "";
  };
  for (const Way& way : kWays) {
    const std::string stream = way.is_stream ? "true," : "false,";
    const Seen seen = read_answer(
        way, server_testing::ask(port(), "POST", path_of(way),
                                 R"({"model":"tiny","temperature":1,"seed":1,"stream":)" + stream + tools(way)));
    EXPECT_EQ(seen.content, "");
    EXPECT_EQ(seen.end, "calls");
    ASSERT_EQ(seen.calls.size(), 1U);
    EXPECT_EQ(seen.calls[0].first, "f");
    const int64_t n = at(parse_json(seen.calls[0].second), "n").try_int64().value_or(-1);
    EXPECT_TRUE(n >= 0 && n <= 99) << seen.calls[0].second;
  }
}

// --- the end of a stream --------------------------------------------------------------------------------------------

/// Known faults 17 and 24: what was held back because a marker or a stop string might have come goes out at the end,
/// and through the parser: a marker that is whole is none of the text.
TEST_F(ToolFaultsTest, HeldTextComesAtTheEndAndWholeMarkersDoNot) {
  std::vector<Output> outputs;
  std::vector<Seen> expected;
  const std::string stops = R"(,"stop":"own fox","stop_sequences":["own fox"])";
  const std::string_view border = dsml::kThinkEnd;
  for (const std::string_view marker : {border, dsml::kOpen, dsml::kClose, std::string_view("own fox")}) {
    for (size_t bytes = 1; bytes < marker.size(); ++bytes) {
      if ((static_cast<unsigned char>(marker[bytes]) & 0xC0U) == 0x80U) continue;
      const std::string tail = "2 " + std::string(marker.substr(0, bytes));
      outputs.push_back({{tail}, false, stops});
      expected.push_back({"", tail, {}, "stop"});
      outputs.push_back({{tail}, true, stops});
      expected.push_back({tail, "", {}, "stop"});
      outputs.push_back({{"why", std::string(border), tail}, true, stops});
      expected.push_back({"why", tail, {}, "stop"});
    }
  }
  // Whole ones at the very end.
  outputs.push_back({{"why", std::string(border)}, true, stops});
  expected.push_back({"why", "", {}, "stop"});
  outputs.push_back({{"its own fox"}, false, stops});
  expected.push_back({"", "its ", {}, "stop"});
  outputs.push_back({{"I look.\n\n<｜DSML｜ calls>"}, false, ""});
  expected.push_back({"", "I look.", {}, "stop"});
  serve(outputs);
  expect_all(outputs, expected, std::span(kWays).first(4));  // responses have no stop strings
}

/// Known fault 28: no special token shows, whether it comes while thinking or in the answer, and whatever is asked for.
TEST_F(ToolFaultsTest, NoSpecialTokenShows) {
  const Tokenizer& tokenizer = model->tokenizer();
  const int32_t border = tokenizer.find_added_token(dsml::kThinkEnd).value();
  const std::vector<int32_t> word = tokenizer.encode_plain("word");
  std::vector<std::vector<int32_t>> ids;
  std::vector<Output> outputs;
  for (int32_t id = 0; id < static_cast<int32_t>(model->config().vocab_size); ++id) {
    if (!tokenizer.is_special(id) || id == border) continue;
    std::vector<int32_t> all = word;
    for (const int32_t each : {id, border, id, border, id})
      all.push_back(each);
    all.insert(all.end(), word.begin(), word.end());
    ids.push_back(std::move(all));
    outputs.push_back(
        {{}, true, R"(,"skip_special_tokens":false,"ignore_eos":true,"max_tokens":12,"max_output_tokens":12)"});
  }
  ASSERT_GE(outputs.size(), 3U);
  serve_ids(ids);
  for (const std::vector<Seen>& all : ask_all(outputs)) {
    for (const Seen& seen : all) {
      EXPECT_EQ(seen.reasoning.substr(0, 4), "word");
      EXPECT_THAT(seen.reasoning + seen.content, Not(HasSubstr("｜"))) << testing::PrintToString(seen);
      EXPECT_THAT(seen.reasoning + seen.content, Not(HasSubstr("think>"))) << testing::PrintToString(seen);
    }
  }
}

/// Known fault 26: a stop string inside a block of accepted drafts cuts the sequence there, so that the next turn finds
/// what a server without drafts finds.
TEST_F(ToolFaultsTest, AStopInsideADraftedBlockCutsTheSequence) {
  const std::shared_ptr<const LoadedModel> drafting = service_testing::load_roomy_model(*checkpoint, true);
  struct Turn {
    std::string text;
    std::string end;
    int64_t hit = 0;
    int64_t prompt = 0;
  };
  const auto complete = [this](const std::string& prompt, const std::string& fields) {
    std::string body = R"({"model":"tiny","temperature":0,"ignore_eos":true,"max_tokens":40,"prompt":)";
    body += write_json(Json::make_string(prompt)) + fields + "}";
    const Json answer = server_testing::ask(port(), "POST", "/v1/completions", body).json();
    return Turn{at(answer, "choices", 0, "text").as_string(), at(answer, "choices", 0, "finish_reason").as_string(),
                server_testing::number(at(answer, "usage", "prompt_cache_hit_tokens")),
                server_testing::number(at(answer, "usage", "prompt_tokens"))};
  };
  const auto run = [&](DraftOptions drafts, const std::string& stop) {
    EngineServiceOptions options;
    options.kv.emplace();
    options.kv->ram_bytes = size_t{64} << 20;
    options.kv->snapshot_ram_bytes = size_t{16} << 20;
    options.scheduler.drafts = drafts;
    serve_with(make_engine_service(drafting, options));
    const std::string fields = stop.empty() ? "" : R"(,"stop":)" + write_json(Json::make_string(stop));
    const Turn first = complete("hello hello hello", fields);
    return std::pair(first, complete("hello hello hello" + first.text, ""));
  };
  const DraftOptions off{.mode = DraftOptions::Mode::kOff};
  const DraftOptions five{.mode = DraftOptions::Mode::kFixed, .length = 5};
  const std::string whole = run(off, "").first.text;
  size_t stops = 0;
  for (size_t end = 8; end + 4 < whole.size() && stops < 5; end += 9) {
    if ((static_cast<unsigned char>(whole[end]) & 0x80U) != 0 ||
        (static_cast<unsigned char>(whole[end + 3]) & 0x80U) != 0)
      continue;  // inside of a character that is none, perhaps
    const std::string stop = whole.substr(end, 3);
    const auto [expected, expected_next] = run(off, stop);
    const auto [got, got_next] = run(five, stop);
    EXPECT_EQ(got.end, "stop");
    EXPECT_EQ(got.text, expected.text);
    EXPECT_EQ(got_next.text, expected_next.text);
    EXPECT_EQ(got_next.hit, expected_next.hit) << "of " << got_next.prompt;
    ++stops;
  }
  EXPECT_GE(stops, 2U);
}

}  // namespace
}  // namespace tidepool
