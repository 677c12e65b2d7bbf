#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/temp_folder.h"
#include "cli_program.h"

namespace tidepool {
namespace {

using testing::HasSubstr;
using testing::Not;

ProgramResult chat(const std::string& lines, std::vector<std::string> options = {"--no-thinking"}) {
  options.insert(options.begin(), {"chat", golden("ckpt"), "--max-tokens", "6", "--seed", "4"});
  return run_tidepool(options, lines);
}

std::string saved(const std::filesystem::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

TEST(CliChat, LinesFromAPipeAreAnsweredInPlainText) {
  const ProgramResult result = chat("Hello\n\nAnd you?\n");
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_GE(std::ranges::count(result.out, '\n'), 2);
  EXPECT_THAT(result.out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(result.out, Not(HasSubstr("> ")));
}

TEST(CliChat, SavesWhatRunCanRead) {
  const TempFolder folder;
  const std::string file = (folder / "talk.json").string();
  const ProgramResult result = chat("/system Be brief.\nHello\n/save " + file + "\n");
  ASSERT_EQ(result.status, 0) << result.err;
  const Json talk = parse_json(saved(file));
  const Json::Array& messages = at(talk, "messages").as_array();
  ASSERT_EQ(messages.size(), 3U);
  EXPECT_EQ(at(messages[0], "role").as_string(), "system");
  EXPECT_EQ(at(messages[0], "content").as_string(), "Be brief.");
  EXPECT_EQ(at(messages[1], "content").as_string(), "Hello");
  EXPECT_EQ(at(messages[2], "role").as_string(), "assistant");
  EXPECT_EQ(run_tidepool({"run", golden("ckpt"), "--request", file, "--max-tokens", "1", "--json"}).status, 0);
}

TEST(CliChat, PicturesGoWithTheNextMessageAndAreSaved) {
  const TempFolder folder;
  const std::string file = (folder / "talk.json").string();
  const std::string picture = golden("../corpus/png_fuzz/rgb.png");
  const ProgramResult result =
      chat("/image " + picture + "\nHello\n/image nowhere.png\n/image\nAnd you?\n/save " + file + "\n");
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("10 tokens; it goes with the next message"));
  EXPECT_THAT(result.err, HasSubstr("nowhere.png: "));
  EXPECT_THAT(result.err, HasSubstr("/image needs the name of a file"));
  const Json talk = parse_json(saved(file));
  const Json::Array& messages = at(talk, "messages").as_array();
  const Json::Array& parts = at(messages[0], "content").as_array();
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(at(parts[0], "type").as_string(), "image_url");
  EXPECT_EQ(at(at(parts[0], "image_url"), "url").as_string().find("data:image/png;base64,iVBOR"), 0U);
  EXPECT_EQ(at(parts[1], "text").as_string(), "Hello");
  EXPECT_EQ(at(messages[2], "content").as_string(), "And you?");
  EXPECT_EQ(run_tidepool({"run", golden("ckpt"), "--request", file, "--max-tokens", "1", "--json"}).status, 0);
}

TEST(CliChat, EffortIsSetAndShown) {
  const ProgramResult result = chat("/effort\n/effort low\n/effort 33\n/effort off\n/effort sideways\n/exit\n");
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.out, "no thinking\neffort 50\neffort 33\nno thinking\n");
  EXPECT_THAT(result.err, HasSubstr("effort \"sideways\""));
}

TEST(CliChat, ResetKeepsTheSystemMessage) {
  const TempFolder folder;
  const std::string file = (folder / "talk.json").string();
  (void)chat("Hello\n/reset\n/save " + file + "\n", {"--no-thinking", "--system", "Be brief."});
  EXPECT_EQ(at(parse_json(saved(file)), "messages").as_array().size(), 1U);
}

TEST(CliChat, UnknownCommandsAreSaidAndTwoSlashesAreText) {
  const TempFolder folder;
  const std::string file = (folder / "talk.json").string();
  const ProgramResult result = chat("/dance\n//dance\n/save " + file + "\n");
  EXPECT_THAT(result.err, HasSubstr("/dance is not a command"));
  EXPECT_EQ(at(at(parse_json(saved(file)), "messages").as_array()[0], "content").as_string(), "/dance");
}

TEST(CliChat, ExitEndsAtOnce) {
  EXPECT_EQ(chat("/exit\nHello\n").out, "");
  EXPECT_THAT(chat("/help\n").out, HasSubstr("/save FILE"));
}

/// The context holds 1,024 tokens.
TEST(CliChat, ARefusedMessageDoesNotEndTheConversation) {
  const ProgramResult result = chat(std::string(9000, 'x') + "\nHello\n");
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.err, HasSubstr("tokens and the context 1024"));
  EXPECT_GT(result.out.size(), 1U);
}

TEST(CliChat, EndsWithAnErrorWhenItsOutputCannotBeWritten) {
  const ProgramResult result =
      run_tidepool_on_full_disk({"chat", golden("ckpt"), "--no-thinking", "--max-tokens", "2"}, "Hello\nAnd you?\n");
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("standard output: No space left on device"));
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
}

/// Returns when the line editor has the keyboard: it moves its cursor at a left arrow, while the terminal by itself
/// only shows one. (It takes over just after it has shown its prompt.) The line is empty afterwards.
void wait_for_editor(TerminalProgram& program) {
  (void)program.read_until("> ");
  program.send("x\x1b[D");
  (void)program.read_until("\b");
  program.send("\x0b");  // Ctrl-K: erase to the end of the line
}

/// The answer would fill the context, some thousand tokens; Ctrl-C ends it, and the program goes on.
TEST(CliChatTerminal, CtrlCStopsTheAnswerAndNotTheProgram) {
  TerminalProgram program({"chat", golden("ckpt"), "--ignore-eos", "--isa", "reference", "--seed", "4"});
  wait_for_editor(program);
  program.send("Hello\r");
  // The first thing of the answer: thinking, in a faint style.
  ASSERT_THAT(program.read_until("\x1b[2m"), HasSubstr("\x1b[2m"));
  program.send("\x03");
  ASSERT_THAT(program.read_until("stopped]"), HasSubstr("stopped]"));
  wait_for_editor(program);
  program.send("/effort\r");
  EXPECT_THAT(program.read_until("effort 75"), HasSubstr("effort 75"));
  wait_for_editor(program);
  program.send("/exit\r");
  EXPECT_EQ(program.wait(), 0);
}

TEST(CliChatTerminal, CtrlCAtThePromptForgetsTheLineAndCtrlDEnds) {
  TerminalProgram program({"chat", golden("ckpt"), "--max-tokens", "2"});
  wait_for_editor(program);
  program.send("/exit\x03");
  wait_for_editor(program);
  program.send("/effort 12\r");
  EXPECT_THAT(program.read_until("\x1b[2meffort 12"), HasSubstr("\x1b[2meffort 12"));
  wait_for_editor(program);
  program.send("\x04");
  EXPECT_EQ(program.wait(), 0);
}

/// Left arrow, so that the missing digit lands in the middle; then the line before comes back with the up arrow.
TEST(CliChatTerminal, LinesCanBeEditedAndRecalled) {
  TerminalProgram program({"chat", golden("ckpt"), "--max-tokens", "2"});
  wait_for_editor(program);
  program.send("/effort 1\x1b[D2\r");  // 2 before 1
  EXPECT_THAT(program.read_until("\x1b[2meffort 21"), HasSubstr("\x1b[2meffort 21"));
  wait_for_editor(program);
  program.send("\x1b[A\r");
  EXPECT_THAT(program.read_until("\x1b[2meffort 21"), HasSubstr("\x1b[2meffort 21"));
  wait_for_editor(program);
  program.send("\x04");
  EXPECT_EQ(program.wait(), 0);
}

/// A character of three bytes is one to the editor: one backspace takes it away.
TEST(CliChatTerminal, LinesAreUtf8) {
  const TempFolder folder;
  const std::string file = (folder / "talk.json").string();
  TerminalProgram program({"chat", golden("ckpt"), "--max-tokens", "2"});
  wait_for_editor(program);
  program.send("/system 潮水来\x7f池\r");
  (void)program.read_until("system message set");
  wait_for_editor(program);
  program.send("/save " + file + "\r");
  (void)program.read_until("saved 1 messages");
  wait_for_editor(program);
  program.send("\x04");
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(at(at(parse_json(saved(file)), "messages").as_array()[0], "content").as_string(), "潮水池");
}

TEST(CliChatTerminal, NoColorShowsNoStyles) {
  TerminalProgram program({"chat", golden("ckpt"), "--max-tokens", "4"}, {{"NO_COLOR", "1"}});
  wait_for_editor(program);
  program.send("Hello\r");
  const std::string answer = program.read_until("--max-tokens]");
  EXPECT_THAT(answer, HasSubstr("(thinking) "));
  EXPECT_THAT(answer, Not(HasSubstr("\x1b[2m")));
  wait_for_editor(program);
  program.send("\x04");
  EXPECT_EQ(program.wait(), 0);
}

/// What is mapped of a file that is cut short cannot be read; the system says so with a signal.
TEST(CliChatTerminal, AModelFileCutShortWhileInUseIsSaidBeforeTheEnd) {
  const TempFolder folder;
  std::filesystem::copy(golden("ckpt"), folder.path(), std::filesystem::copy_options::recursive);
  TerminalProgram program({"chat", folder.path().string(), "--max-tokens", "2"});
  wait_for_editor(program);
  for (const auto& file : std::filesystem::directory_iterator(folder.path())) {
    if (file.path().extension() == ".safetensors") std::filesystem::resize_file(file.path(), 0);
  }
  program.send("Hello\r");
  EXPECT_THAT(program.read_until("start again"), HasSubstr("tidepool: error: a file of the model was cut short"));
  EXPECT_EQ(program.wait(), 1);
}

}  // namespace
}  // namespace tidepool
