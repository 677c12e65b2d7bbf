#include "formats/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/temp_folder.h"
#include "formats/golden_test_util.h"

namespace tidepool {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Json = nlohmann::ordered_json;

Json released() {
  return Json::parse(read_file(kGolden / "released_config.json", 1 << 20));
}

ModelConfig parse(const Json& json) {
  return parse_config(json.dump(), "config.json");
}

Error error_of_text(const std::string& text) {
  try {
    (void)parse_config(text, "config.json");
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::kCancelled, "no error at all"};
}

/// The error that the released config gives with one value changed; `pointer` as in "/text_config/hidden_act".
Error error_with(const std::string& pointer, const Json& value) {
  Json json = released();
  json[Json::json_pointer(pointer)] = value;
  return error_of_text(json.dump());
}

TEST(Config, ReadsTheReleasedOne) {
  const ModelConfig config = load_config(kGolden / "released_config.json");
  EXPECT_EQ(config.image_token_id, 129264);
  EXPECT_EQ(config.vocab_size, 129280);
  EXPECT_EQ(config.hidden_size, 5120);
  EXPECT_EQ(config.moe_intermediate_size, 2304);
  EXPECT_EQ(config.num_hidden_layers, 40);
  EXPECT_EQ(config.num_attention_heads, 64);
  EXPECT_EQ(config.head_dim, 512);
  EXPECT_EQ(config.qk_rope_head_dim, 64);
  EXPECT_EQ(config.q_lora_rank, 1280);
  EXPECT_EQ(config.o_lora_rank, 1024);
  EXPECT_EQ(config.o_groups, 8);
  EXPECT_EQ(config.swiglu_limit, 10.0);
  EXPECT_EQ(config.rms_norm_eps, 1e-20);
  EXPECT_EQ(config.max_position_embeddings, 1048576);
  EXPECT_EQ(config.rope_theta, 10000);
  EXPECT_EQ(config.compress_rope_theta, 160000);
  EXPECT_EQ(config.yarn.factor, 16);
  EXPECT_EQ(config.yarn.beta_fast, 32);
  EXPECT_EQ(config.yarn.beta_slow, 1);
  EXPECT_EQ(config.yarn.original_max_position_embeddings, 65536);
  EXPECT_EQ(config.n_routed_experts, 384);
  EXPECT_EQ(config.n_shared_experts, 1);
  EXPECT_EQ(config.num_experts_per_tok, 6);
  EXPECT_TRUE(config.norm_topk_prob);
  EXPECT_EQ(config.routed_scaling_factor, 1.5);
  EXPECT_EQ(config.sliding_window, 128);
  EXPECT_EQ(config.compress_ratios.size(), 43U);
  EXPECT_THAT(config.kv_source_layer_ids, ElementsAre(2, 8, 14, 20));
  EXPECT_THAT(config.index_source_layer_ids, ElementsAre(2, 8, 14, 20, 24, 28, 32, 36));
  EXPECT_EQ(config.index_n_heads, 32);
  EXPECT_EQ(config.index_head_dim, 128);
  EXPECT_EQ(config.index_topk, 512);
  EXPECT_EQ(config.candidate_source_layer_id, 20);
  EXPECT_EQ(config.candidate_topk_blocks, 2048);
  EXPECT_EQ(config.candidate_block_size, 8);
  EXPECT_EQ(config.hc_mult, 4);
  EXPECT_EQ(config.hc_sinkhorn_iters, 20);
  EXPECT_EQ(config.hc_eps, 1e-6);
  EXPECT_THAT(config.unknown_keys, IsEmpty());
}

TEST(Config, ReadsTheReleasedOptionalParts) {
  const ModelConfig config = load_config(kGolden / "released_config.json");
  ASSERT_TRUE(config.engram && config.dspark && config.vision);
  EXPECT_THAT(config.engram->layer_ids, ElementsAre(1, 14));
  EXPECT_THAT(config.engram->num_embeddings, ElementsAre(384006168, 384016682));
  EXPECT_EQ(config.engram->max_ngram_size, 4);
  EXPECT_EQ(config.engram->vocab_size, 16000000);
  EXPECT_EQ(config.engram->n_heads, 8);
  EXPECT_EQ(config.engram->head_dim, 256);
  EXPECT_EQ(config.engram->pad_token_id, 2);
  EXPECT_EQ(config.engram->compressed_vocab_size, 99092);
  EXPECT_EQ(config.dspark->num_layers, 3);
  EXPECT_EQ(config.dspark->block_size, 5);
  EXPECT_EQ(config.dspark->noise_token_id, 128799);
  EXPECT_THAT(config.dspark->target_layer_ids, ElementsAre(37, 38, 39));
  EXPECT_EQ(config.dspark->markov_rank, 256);
  EXPECT_EQ(config.dspark->n_routed_experts, 128);
  EXPECT_EQ(config.dspark->num_experts_per_tok, 3);
  EXPECT_EQ(config.vision->num_hidden_layers, 32);
  EXPECT_EQ(config.vision->hidden_size, 1024);
  EXPECT_EQ(config.vision->num_attention_heads, 16);
  EXPECT_EQ(config.vision->intermediate_size, 2816);
  EXPECT_EQ(config.vision->patch_size, 14);
  EXPECT_EQ(config.vision->rope_theta, 10000);
  EXPECT_EQ(config.vision->downsample_ratio, 3);
  EXPECT_EQ(config.vision->max_image_tokens, 1024);
  EXPECT_EQ(config.vision->min_pixels, 295936);
  EXPECT_FALSE(config.vision->max_wh_ratio);
}

TEST(Config, AbsentPartsAreAbsent) {
  const ModelConfig config = load_config(kGolden / "ckpt_textonly" / "config.json");
  EXPECT_FALSE(config.engram);
  EXPECT_FALSE(config.dspark);
  EXPECT_FALSE(config.vision);
  EXPECT_EQ(config.candidate_source_layer_id, -1);
  EXPECT_THAT(config.unknown_keys, IsEmpty());
}

TEST(Config, MissingKeysOfAbsentPartsAreFine) {
  Json json = released();
  json.erase("vision_config");
  json.erase("image_token_id");
  Json& text = json["text_config"];
  for (const char* key : {"engram_layer_ids",
                          "engram_num_embeddings",
                          "engram_max_ngram_size",
                          "engram_vocab_size",
                          "engram_n_heads",
                          "engram_head_dim",
                          "engram_pad_token_id",
                          "engram_compressed_vocab_size",
                          "num_nextn_predict_layers",
                          "dspark_block_size",
                          "dspark_noise_token_id",
                          "dspark_target_layer_ids",
                          "dspark_markov_rank",
                          "dspark_n_routed_experts",
                          "dspark_num_experts_per_tok",
                          "candidate_source_layer_id",
                          "candidate_topk_blocks",
                          "candidate_block_size",
                          "swiglu_limit",
                          "attention_dropout"}) {
    text.erase(key);
  }
  text["compress_ratios"].erase(text["compress_ratios"].end() - 3, text["compress_ratios"].end());
  const ModelConfig config = parse(json);
  EXPECT_FALSE(config.engram);
  EXPECT_FALSE(config.dspark);
  EXPECT_FALSE(config.vision);
  EXPECT_EQ(config.candidate_source_layer_id, -1);
  EXPECT_EQ(config.swiglu_limit, 0);
}

TEST(Config, KeepsUnknownKeysInFileOrder) {
  Json json = released();
  json["text_config"]["zeta"] = 1;
  json["text_config"]["alpha"] = Json::object({{"inner", 2}});
  json["text_config"]["rope_scaling"]["extra"] = 3;
  json["vision_config"]["more"] = true;
  json["last"] = nullptr;
  EXPECT_THAT(parse(json).unknown_keys, ElementsAre("/text_config/rope_scaling/extra", "/text_config/zeta",
                                                    "/text_config/alpha", "/vision_config/more", "/last"));
}

TEST(Config, NormTopkProbFalseIsHonoured) {
  Json json = released();
  json["text_config"]["norm_topk_prob"] = false;
  EXPECT_FALSE(parse(json).norm_topk_prob);
}

struct Refused {
  const char* pointer;
  Json value;
  const char* said;  ///< part of the message, beside the pointer
  friend std::ostream& operator<<(std::ostream& out, const Refused& refused) {
    return out << refused.pointer << " = " << refused.value;
  }
};

class ConfigRefuses : public testing::TestWithParam<Refused> {};

TEST_P(ConfigRefuses, AndSaysKeyValueAndWhatIsSupported) {
  const Refused& param = GetParam();
  const Error error = error_with(param.pointer, param.value);
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("config.json: "), HasSubstr(param.pointer), HasSubstr(param.said)));
}

/// Values that are fine by themselves: `said` is where and why the message sees the conflict.
class ConfigDisagrees : public testing::TestWithParam<Refused> {};

TEST_P(ConfigDisagrees, AndSaysWhere) {
  const Error error = error_with(GetParam().pointer, GetParam().value);
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.what(), HasSubstr(GetParam().said));
}

INSTANTIATE_TEST_SUITE_P(
    Keys, ConfigDisagrees,
    testing::Values(Refused{"/text_config/o_groups", 7,
                            "/text_config/num_attention_heads is 64; supported: positive multiples of 7"},
                    Refused{"/text_config/rope_scaling/beta_fast", 0.5, "beta_fast 0.5 is below beta_slow 1"},
                    Refused{
                        "/text_config/candidate_source_layer_id", 8,
                        "/text_config/index_source_layer_ids names layer 14, which would search layer 8's candidates"},
                    Refused{"/text_config/num_nextn_predict_layers", 2,
                            "/text_config/compress_ratios has 43 entries; supported: one "
                            "per layer and draft stage, 42"}));

INSTANTIATE_TEST_SUITE_P(
    Values, ConfigRefuses,
    testing::Values(
        Refused{"/architectures", Json::array({"Other"}), "is [\"Other\"]; supported: [\"DeepseekV41ForCausalLM\"]"},
        Refused{"/dtype", "float16", "is \"float16\"; supported: \"bfloat16\""},
        Refused{"/quantization_config/quant_method", "gptq", "is \"gptq\"; supported: \"fp8\""},
        Refused{"/quantization_config/scale_fmt", "fp32", "supported: \"ue8m0\""},
        Refused{"/quantization_config/weight_block_size", Json::array({128, 128}), "is [128,128]; supported: [32,32]"},
        Refused{"/quantization_config/expert_dtype", "fp8", "supported: \"fp4\""},
        Refused{"/quantization_config/activation_scheme", "static", "supported: \"dynamic\""},
        Refused{"/text_config/model_type", "deepseek_v4_text", "supported: \"deepseek_v41_text\""},
        Refused{"/text_config/hidden_act", "gelu", "is \"gelu\"; supported: \"silu\""},
        Refused{"/text_config/scoring_func", "softmax", "supported: \"sqrtsoftplus\""},
        Refused{"/text_config/topk_method", "greedy", "supported: \"noaux_tc\""},
        Refused{"/text_config/attention_bias", true, "is true; supported: false"},
        Refused{"/text_config/tie_word_embeddings", true, "is true; supported: false"},
        Refused{"/text_config/num_key_value_heads", 8, "is 8; supported: 1"},
        Refused{"/text_config/n_shared_experts", 2, "is 2; supported: integers from 1 to 1"},
        Refused{"/text_config/rope_scaling/rope_type", "linear", "is \"linear\"; supported: \"yarn\""},
        Refused{"/text_config/rope_scaling/mscale", 0.7, "is 0.7; supported: 1.0"},
        Refused{"/text_config/rope_scaling", nullptr, "is null; supported: an object"},
        Refused{"/text_config/norm_topk_prob", 1, "is 1; supported: true, false"}));

INSTANTIATE_TEST_SUITE_P(
    Sizes, ConfigRefuses,
    testing::Values(Refused{"/text_config/hidden_size", 5100, "positive multiples of 32"},
                    Refused{"/text_config/hidden_size", 0, "is 0; supported: integers from 32"},
                    Refused{"/text_config/hidden_size", -5120, "is -5120"},
                    Refused{"/text_config/hidden_size", 5120.5, "is 5120.5"},
                    Refused{"/text_config/hidden_size", "5120", "is \"5120\""},
                    Refused{"/text_config/hidden_size", uint64_t{1} << 40, "is 1099511627776"},
                    Refused{"/text_config/hidden_size", ~uint64_t{0}, "is 18446744073709551615"},
                    Refused{"/text_config/moe_intermediate_size", 2300, "positive multiples of 32"},
                    Refused{"/text_config/head_dim", 500, "positive multiples of 32"},
                    Refused{"/text_config/q_lora_rank", 1290, "positive multiples of 32"},
                    Refused{"/text_config/o_lora_rank", 1025, "positive multiples of 32"},
                    Refused{"/text_config/qk_rope_head_dim", 63, "multiples of 2"},
                    Refused{"/text_config/qk_rope_head_dim", 1024, "wider than head_dim 512"},
                    Refused{"/text_config/index_head_dim", 100, "positive multiples of 32"},
                    Refused{"/text_config/index_head_dim", 32, "narrower than qk_rope_head_dim 64"},
                    Refused{"/text_config/index_topk", 0, "positive multiples of 1"},
                    Refused{"/text_config/num_experts_per_tok", 385, "integers from 1 to 384"},
                    Refused{"/text_config/num_hidden_layers", 5000, "integers from 1 to 4096"},
                    Refused{"/text_config/rms_norm_eps", -1, "numbers from 0 to 1"},
                    Refused{"/text_config/rope_theta", "10000", "is \"10000\""},
                    Refused{"/text_config/compress_ratios", 2, "a list of integers"},
                    Refused{"/text_config/hc_mult", 0, "is 0"},
                    Refused{"/eos_token_id", 129280, "integers from 0 to 129279"},
                    Refused{"/eos_token_id", Json::array({1, 2}), "is [1,2]"},
                    Refused{"/image_token_id", 129280, "integers from 0 to 129279"},
                    Refused{"/vision_config/hidden_size", 1000, "positive multiples of 64"},
                    Refused{"/vision_config/max_wh_ratio", -1, "numbers"}));

INSTANTIATE_TEST_SUITE_P(
    Layers, ConfigRefuses,
    testing::Values(
        Refused{"/text_config/compress_ratios", Json::array({0, 2}),
                "has 2 entries; supported: one per layer and draft"},
        Refused{"/text_config/compress_ratios/5", 3,
                "/text_config/compress_ratios/5 is 3; supported: integers from 0 to 2"},
        Refused{"/text_config/compress_ratios/5", 1, "its KV source, layer 2, has ratio 2"},
        Refused{"/text_config/compress_ratios/1", 2, "has no layer at or before it"},
        Refused{"/text_config/compress_ratios/41", 1, "supported for draft stages: 0"},
        Refused{"/text_config/kv_source_layer_ids", Json::array({2, 8, 8, 20}), "ascending"},
        Refused{"/text_config/kv_source_layer_ids", Json::array({2, 8, 14, 40}), "integers from 0 to 39"},
        Refused{"/text_config/kv_source_layer_ids", Json::array({1, 2, 8, 14, 20}), "names layer 1, whose ratio is 0"},
        Refused{"/text_config/kv_source_layer_ids", Json::array({2, 9, 14, 20}), "which index_source_layer_ids lacks"},
        Refused{"/text_config/index_source_layer_ids", Json::array({8, 2}), "ascending"},
        Refused{"/text_config/index_source_layer_ids", Json::array({0, 2, 8, 14, 20}),
                "names layer 0, whose ratio is 0"},
        Refused{"/text_config/candidate_source_layer_id", 21, "is 21; supported: an index source"},
        Refused{"/text_config/candidate_topk_blocks", 0, "positive multiples of 1"},
        Refused{"/text_config/candidate_block_size", 0, "positive multiples of 1"},
        Refused{"/text_config/engram_layer_ids", Json::array({14, 1}), "ascending"},
        Refused{"/text_config/engram_num_embeddings", Json::array({384006168}), "has 1 entries"},
        Refused{"/text_config/engram_head_dim", 250, "positive multiples of 32"},
        Refused{"/text_config/engram_pad_token_id", 129280, "integers from 0"},
        Refused{"/text_config/dspark_target_layer_ids", Json::array(), "is []"},
        Refused{"/text_config/dspark_target_layer_ids", Json::array({38, 39, 40}), "integers from 0 to 39"},
        Refused{"/text_config/dspark_num_experts_per_tok", 129, "integers from 1 to 128"},
        Refused{"/text_config/dspark_block_size", 0, "integers from 1"}));

TEST(Config, AMissingKeyIsNamed) {
  Json json = released();
  json["text_config"].erase("hidden_size");
  EXPECT_STREQ(error_of_text(json.dump()).what(), "config.json: /text_config/hidden_size is missing");
}

TEST(Config, AVisionConfigNeedsTheImageToken) {
  Json json = released();
  json.erase("image_token_id");
  EXPECT_THAT(error_of_text(json.dump()).what(), HasSubstr("/image_token_id is missing"));
}

TEST(Config, OtherModelsAreNamed) {
  const std::pair<const char*, const char*> others[] = {{"llama", "LlamaForCausalLM"},
                                                        {"qwen2", "Qwen2ForCausalLM"},
                                                        {"deepseek_v3", "DeepseekV3ForCausalLM"},
                                                        {"deepseek_v4", "DeepseekV4ForCausalLM"}};
  for (const auto& [type, architecture] : others) {
    const Json json = {{"architectures", {architecture}}, {"model_type", type}, {"hidden_size", 4096}};
    const Error error = error_of_text(json.dump());
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr(type), HasSubstr(architecture), HasSubstr("supported: \"deepseek_v41\"")));
  }
}

TEST(Config, TheFlatInferenceConfigIsRecognised) {
  const Error error = error_of_text(R"({"dim": 5120, "n_layers": 40, "n_heads": 64})");
  EXPECT_THAT(error.what(), HasSubstr("flat inference/config.json; point at the config.json"));
}

TEST(Config, NoModelTypeIsAnError) {
  EXPECT_THAT(error_of_text("{}").what(), HasSubstr("/model_type is missing"));
}

TEST(Config, BadJsonGivesThePosition) {
  const Error error = error_of_text(R"({"model_type": })");
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
  EXPECT_THAT(error.what(), HasSubstr("not JSON, at byte 16"));
  for (const char* text : {"", "{", "nul", "{\"a\":1}x", "\xff"}) {
    EXPECT_EQ(error_of_text(text).code(), ErrorCode::kCorrupt) << text;
  }
}

TEST(Config, AnythingButAnObjectIsRefused) {
  for (const char* text : {"[]", "1", "null", "\"x\""}) {
    EXPECT_THAT(error_of_text(text).what(), HasSubstr("supported: an object")) << text;
  }
}

TEST(Config, AKeySaidTwiceIsRefused) {
  std::string text = released().dump();
  text.replace(text.find("\"hidden_size\":5120"), 18, "\"hidden_size\":5120,\"hidden_size\":64");
  EXPECT_THAT(error_of_text(text).what(), HasSubstr("the key \"hidden_size\" is there twice"));
}

TEST(Config, ANestingBombIsRefused) {
  const std::string text = "{\"a\":" + std::string(1000000, '[');
  EXPECT_THAT(error_of_text(text).what(), HasSubstr("nested too deeply"));
}

TEST(Config, AHugeNumberIsRefused) {
  EXPECT_EQ(error_of_text("{\"a\": 1e999}").code(), ErrorCode::kCorrupt);
}

TEST(Config, AFileOverTheLimitIsRefused) {
  const TempFolder folder;
  write_file_atomically(folder / "config.json", std::string((1 << 20) + 1, ' '));
  EXPECT_THROW((void)load_config(folder / "config.json"), Error);
}

TEST(Config, ChecksConfigsMadeInMemory) {
  ModelConfig config = load_config(kGolden / "released_config.json");
  EXPECT_NO_THROW(check_config(config, "here"));
  config.compress_ratios[3] = 4;
  EXPECT_THROW(check_config(config, "here"), Error);
}

}  // namespace
}  // namespace tidepool
