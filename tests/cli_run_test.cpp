#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/temp_folder.h"
#include "cli_program.h"
#include "formats/safetensors.h"

namespace tidepool {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

std::vector<int64_t> greedy_ids(const std::string& name) {
  const SafetensorsFile file(golden("cases/greedy.safetensors"));
  const TensorView view = file.tensor(name);
  std::vector<int32_t> ids(view.bytes / sizeof(int32_t));
  std::memcpy(ids.data(), view.data, view.bytes);
  return {ids.begin(), ids.end()};
}

std::string greedy_prompt() {
  std::string list;
  for (const int64_t id : greedy_ids("prompt_ids"))
    list += (list.empty() ? "" : ",") + std::to_string(id);
  return list;
}

ProgramResult run_model(std::vector<std::string> arguments, const std::string& input = "") {
  arguments.insert(arguments.begin(), {"run", golden("ckpt")});
  return run_tidepool(arguments, input);
}

TEST(CliRun, GivesTheGoldenGreedyAnswer) {
  for (const std::string isa : {"auto", "reference"}) {
    const ProgramResult result = run_model(
        {"--prompt-ids", greedy_prompt(), "--temperature", "0", "--max-tokens", "20", "--isa", isa, "--json"});
    ASSERT_EQ(result.status, 0) << result.err;
    const Json answer = result.json();
    EXPECT_EQ(integers(at(answer, "prompt_ids")), greedy_ids("prompt_ids"));
    EXPECT_EQ(integers(at(answer, "output_ids")), greedy_ids("output_ids")) << isa;
    EXPECT_EQ(at(answer, "finish_reason").as_string(), "length");
    EXPECT_EQ(at(answer, "stop_reason").as_string(), "max_tokens");
    EXPECT_EQ(at(at(answer, "usage"), "completion_tokens").try_int64(), 20);
  }
}

/// Unrounded, the two best logits of the 13th token are 0.03 apart: less than one value of the cache that a processor's
/// order of sums puts on the other side of a rounding.
TEST(CliRun, NumericsAndThreadsKeepTheGoldenAnswer) {
  const ProgramResult result =
      run_model({"--prompt-ids", greedy_prompt(), "--temperature", "0", "--max-tokens", "12", "--numerics", "hp",
                 "--threads", "3", "--chunk", "5", "--replay", "full", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  std::vector<int64_t> golden_ids = greedy_ids("output_ids");
  golden_ids.resize(12);
  EXPECT_EQ(integers(at(result.json(), "output_ids")), golden_ids);
}

TEST(CliRun, TextGoesToStandardOutputAlone) {
  const ProgramResult result =
      run_model({"-p", "The tide comes in and", "--no-thinking", "--max-tokens", "16", "--seed", "1"});
  EXPECT_EQ(result.status, 0);
  EXPECT_GT(result.out.size(), 1U);
  EXPECT_EQ(result.err, "");
}

TEST(CliRun, SameSeedGivesTheSameText) {
  const auto text = [](const std::string& seed) {
    return run_model({"-p", "Hello", "--no-thinking", "--max-tokens", "16", "--seed", seed}).out;
  };
  EXPECT_EQ(text("7"), text("7"));
  EXPECT_NE(text("7"), text("8"));
}

TEST(CliRun, PromptMayComeFromStandardInput) {
  const std::vector<std::string> rest = {"--no-thinking", "--max-tokens", "1", "--seed", "1", "--json"};
  std::vector<std::string> named = rest;
  named.insert(named.begin(), {"-p", "Hello"});
  std::vector<std::string> dash = rest;
  dash.insert(dash.begin(), {"-p", "-"});
  const std::vector<int64_t> expected = integers(at(run_model(named).json(), "prompt_ids"));
  EXPECT_EQ(integers(at(run_model(dash, "Hello\n").json(), "prompt_ids")), expected);
  EXPECT_EQ(integers(at(run_model(rest, "Hello").json(), "prompt_ids")), expected);
}

TEST(CliRun, RawPromptHasNoTemplate) {
  const ProgramResult result = run_model({"--raw", "-p", "<｜User｜>", "--max-tokens", "1", "--json"});
  EXPECT_EQ(integers(at(result.json(), "prompt_ids")), (std::vector<int64_t>{0, 501}));
}

TEST(CliRun, LackingControlTokensAreSaidOnce) {
  const ProgramResult result = run_model({"-p", "Hello", "--max-tokens", "1"});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.err, HasSubstr("note: this tokenizer lacks control tokens"));
  EXPECT_THAT(result.err, HasSubstr("<｜System｜>"));
  const ProgramResult as_json = run_model({"-p", "Hello", "--max-tokens", "1", "--json"});
  EXPECT_EQ(as_json.err, "");
  EXPECT_EQ(write_json(at(as_json.json(), "missing_control_tokens")), R"(["<｜System｜>"])");
}

TEST(CliRun, StopStringEndsTheAnswer) {
  const ProgramResult result = run_model({"--prompt-ids", greedy_prompt(), "--temperature", "0", "--max-tokens", "20",
                                          "--stop", "nowhere", "--stop", "“Ü", "--json"});
  const Json answer = result.json();
  EXPECT_EQ(at(answer, "finish_reason").as_string(), "stop");
  EXPECT_EQ(at(answer, "stop_reason").as_string(), "“Ü");
  EXPECT_THAT(at(answer, "content").as_string(), testing::Not(HasSubstr("“")));
}

/// The context is full after prompt and three tokens.
TEST(CliRun, ContextLimitIsAFinishReason) {
  const std::string limit = std::to_string(greedy_ids("prompt_ids").size() + 3);
  const Json answer = run_model({"--prompt-ids", greedy_prompt(), "--max-model-len", limit, "--json"}).json();
  EXPECT_EQ(at(answer, "finish_reason").as_string(), "length");
  EXPECT_EQ(at(answer, "stop_reason").as_string(), "context");
  EXPECT_EQ(integers(at(answer, "output_ids")).size(), 3U);
}

TEST(CliRun, LogprobsAreOfTheWholeDistribution) {
  const Json answer = run_model({"--prompt-ids", greedy_prompt(), "--temperature", "0", "--max-tokens", "2",
                                 "--logprobs", "3", "--json"})
                          .json();
  const Json::Array& tokens = at(answer, "logprobs").as_array();
  ASSERT_EQ(tokens.size(), 2U);
  EXPECT_EQ(at(tokens[0], "id").try_int64(), greedy_ids("output_ids")[0]);
  EXPECT_EQ(at(tokens[0], "token").as_string(), "中文");
  EXPECT_EQ(integers(at(tokens[0], "bytes")), (std::vector<int64_t>{0xe4, 0xb8, 0xad, 0xe6, 0x96, 0x87}));
  const Json::Array& top = at(tokens[0], "top").as_array();
  ASSERT_EQ(top.size(), 3U);
  EXPECT_EQ(at(top[0], "logprob").as_double(), at(tokens[0], "logprob").as_double());
  EXPECT_LE(at(top[1], "logprob").as_double(), at(top[0], "logprob").as_double());
}

TEST(CliRun, LogitBiasAndPenaltiesArrive) {
  const Json answer = run_model({"--prompt-ids", "5,6", "--temperature", "0", "--max-tokens", "30", "--logit-bias",
                                 "9:30", "--frequency-penalty", "2", "--ignore-eos", "--json"})
                          .json();
  const std::vector<int64_t> ids = integers(at(answer, "output_ids"));
  // Thirty points of bias are worth fifteen times two points of penalty.
  EXPECT_EQ(ids.front(), 9);
  EXPECT_LT(std::ranges::count(ids, 9), 25);
}

TEST(CliRun, RequestFileIsAChatCompletionsBody) {
  const TempFolder folder;
  std::ofstream(folder / "request.json")
      << R"({"messages": [{"role": "user", "content": "Hello"}], "thinking": {"type": "disabled"}})";
  const std::vector<std::string> rest = {"--max-tokens", "1", "--json"};
  std::vector<std::string> from_file = rest;
  from_file.insert(from_file.begin(), {"--request", (folder / "request.json").string()});
  std::vector<std::string> from_text = rest;
  from_text.insert(from_text.begin(), {"-p", "Hello", "--no-thinking"});
  EXPECT_EQ(integers(at(run_model(from_file).json(), "prompt_ids")),
            integers(at(run_model(from_text).json(), "prompt_ids")));
}

TEST(CliRun, GenerationConfigIsHonoured) {
  const TempFolder folder;
  for (const auto& entry : std::filesystem::directory_iterator(golden("ckpt")))
    std::filesystem::create_symlink(entry.path(), folder.path() / entry.path().filename());
  std::ofstream(folder / "generation_config.json") << R"({"temperature": 0, "eos_token_id": 184})";
  const Json answer = run_tidepool({"run", folder.path().string(), "--prompt-ids", greedy_prompt(), "--json"}).json();
  // The second golden token now ends the answer.
  EXPECT_EQ(integers(at(answer, "output_ids")), (std::vector<int64_t>{341, 184}));
  EXPECT_EQ(at(answer, "finish_reason").as_string(), "stop");
  EXPECT_EQ(at(answer, "stop_reason").try_int64(), 184);
}

TEST(CliRun, RefusalsAreOneLineAndStatusOne) {
  const auto refusal = [](const std::vector<std::string>& arguments) {
    const ProgramResult result = run_tidepool(arguments);
    EXPECT_EQ(result.status, 1) << result.err;
    EXPECT_THAT(result.out, IsEmpty());
    EXPECT_THAT(result.err, testing::StartsWith("tidepool: error: "));
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
    return result.err;
  };
  EXPECT_THAT(refusal({"run", "no/such/folder", "-p", "x"}), HasSubstr("no/such/folder"));
  EXPECT_THAT(refusal({"run", golden("ckpt"), "-p", "x", "--no-thinking", "--temperature", "3"}),
              HasSubstr("temperature is 3; it must be from 0 to 2"));
  EXPECT_THAT(refusal({"run", golden("ckpt"), "-p", "x", "--effort", "huge"}), HasSubstr("effort \"huge\""));
  EXPECT_THAT(refusal({"run", golden("ckpt"), "-p", "x", "--no-thinking", "--logit-bias", "9"}),
              HasSubstr("1234:-5.5"));
  EXPECT_THAT(refusal({"run", golden("ckpt"), "-p", "x", "--no-thinking", "--stop", ""}), HasSubstr("stop"));
  EXPECT_THAT(refusal({"run", golden("ckpt"), "--prompt-ids", "5,512"}), HasSubstr("token 512"));
  EXPECT_THAT(refusal({"run", golden("ckpt"), "-p", "x", "--isa", "abacus"}), HasSubstr("abacus"));
}

TEST(CliRun, PromptLongerThanTheContextNamesBothLengths) {
  std::string prompt = "5";
  for (int i = 1; i < 1500; ++i)
    prompt += ",5";
  const ProgramResult result = run_model({"--prompt-ids", prompt});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("the prompt has 1500 tokens and the context 1024"));
}

TEST(CliRun, ErrorsAreJsonWhereJsonIsWanted) {
  const ProgramResult result = run_tidepool({"run", "no/such/folder", "-p", "x", "--json"});
  EXPECT_EQ(result.status, 1);
  const Json error = parse_json(result.err);
  EXPECT_EQ(at(at(error, "error"), "code").as_string(), "not_found");
  EXPECT_THAT(at(at(error, "error"), "message").as_string(), HasSubstr("no/such/folder"));
}

TEST(CliRun, AReaderThatGoesAwayIsNoError) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"inspect", golden("ckpt")},
        std::vector<std::string>{"run", golden("ckpt"), "--raw", "-p", "x", "--max-tokens", "50"}}) {
    const ProgramResult result = run_tidepool_unread(arguments);
    EXPECT_EQ(result.status, 0);
    EXPECT_EQ(result.err, "");
  }
}

TEST(CliRun, BrokenConfigIsNamed) {
  const TempFolder folder;
  std::ofstream(folder / "config.json") << R"({"model_type": )";
  const ProgramResult result = run_tidepool({"run", folder.path().string(), "-p", "x"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("config.json"));
}

TEST(CliRun, WrongCommandLinesAreStatusTwo) {
  const auto usage = [](const std::vector<std::string>& arguments) {
    const ProgramResult result = run_tidepool(arguments);
    EXPECT_EQ(result.status, 2) << result.err;
    EXPECT_THAT(result.out, IsEmpty());
    return result.err;
  };
  EXPECT_THAT(usage({}), HasSubstr("tidepool: error: "));
  EXPECT_THAT(usage({"swim"}), HasSubstr("swim"));
  EXPECT_THAT(usage({"run"}), HasSubstr("MODEL"));
  EXPECT_THAT(usage({"run", "m", "--no-such-option"}), HasSubstr("--no-such-option"));
  EXPECT_THAT(usage({"run", "m", "--temperature", "warm"}), HasSubstr("temperature"));
  EXPECT_THAT(usage({"run", "m", "--replay", "never"}), HasSubstr("replay"));
  EXPECT_THAT(usage({"run", "m", "-p", "x", "--prompt-ids", "1"}), HasSubstr("prompt"));
  EXPECT_THAT(usage({"run", "m", "--chunk", "0", "--json"}), HasSubstr(R"({"error": {"code": "usage")"));
}

/// A picture of the decoders' tests.
std::string picture(const std::string& name) {
  return golden((name.ends_with(".jpg") ? "../corpus/jpeg_fuzz/" : "../corpus/png_fuzz/") + name);
}

TEST(CliRun, PicturesStandInFrontOfThePrompt) {
  const std::vector<std::string> rest = {"-p", "hi",    "--no-thinking", "--max-tokens", "4", "--temperature",
                                         "0",  "--json"};
  const auto prompt_of = [&](std::vector<std::string> images) {
    for (size_t i = 0; i < images.size(); i += 2)
      images.insert(images.begin() + static_cast<std::ptrdiff_t>(i), "--image");
    images.insert(images.end(), rest.begin(), rest.end());
    const ProgramResult result = run_model(images);
    EXPECT_EQ(result.status, 0) << result.err;
    return integers(at(result.json(), "prompt_ids"));
  };
  constexpr int64_t kImageId = 505;
  // 37 x 29 pixels become 2 rows of 3 cells: START, 2 * (3 IMAGE, NEWLINE), END.
  EXPECT_EQ(std::ranges::count(prompt_of({picture("rgb.png")}), kImageId), 10);
  EXPECT_EQ(std::ranges::count(prompt_of({picture("rgb.png"), picture("full.jpg")}), kImageId), 20);
  EXPECT_EQ(std::ranges::count(prompt_of({}), kImageId), 0);
}

TEST(CliRun, UnusablePicturesAreNamed) {
  const auto refusal = [](const std::string& model, const std::string& file) {
    const ProgramResult result = run_tidepool({"run", golden(model), "--image", file, "-p", "x"});
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.out, IsEmpty());
    return result.err;
  };
  EXPECT_THAT(refusal("ckpt", "no-such-file.png"), HasSubstr("no-such-file.png: "));
  EXPECT_THAT(refusal("ckpt", golden("README.md")), HasSubstr("not a JPEG, PNG, WebP or GIF file"));
  EXPECT_THAT(refusal("ckpt_textonly", picture("rgb.png")), HasSubstr("cannot see images"));
}

TEST(CliRun, HelpShowsExamples) {
  for (const std::string command : {"run", "chat", "inspect", "trace", "vectors"}) {
    const ProgramResult result = run_tidepool({command, "--help"});
    EXPECT_EQ(result.status, 0);
    EXPECT_THAT(result.out, HasSubstr("Examples:\n  "));
    EXPECT_THAT(result.out, HasSubstr("tidepool " + command + " "));
    EXPECT_THAT(result.err, IsEmpty());
  }
  EXPECT_THAT(run_tidepool({"--help"}).out, HasSubstr("inspect"));
  EXPECT_THAT(run_tidepool({"--version"}).out, testing::MatchesRegex("tidepool [0-9.]+\n"));
}

}  // namespace
}  // namespace tidepool
