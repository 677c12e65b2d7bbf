#include "apps/line_editor.h"

#include <histedit.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <iostream>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace tidepool {
namespace {

constexpr int kHistoryLines = 1000;

/// The editor counts in characters, so it must know that bytes are UTF-8.
void use_utf8() {
  const char* chosen = std::setlocale(LC_CTYPE, "");
  if (chosen == nullptr || MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
}

}  // namespace

/// A line editor of libedit. Ctrl-C is a key to it and not a signal, so nothing happens behind its back.
class LineEditor::Terminal {
 public:
  Terminal() : editor_((use_utf8(), ::el_init("tidepool", stdin, stdout, stderr))), history_(::history_init()) {
    TIDEPOOL_CHECK(editor_ != nullptr && history_ != nullptr, "libedit gives an editor for a terminal");
    HistEvent event;
    ::history(history_, &event, H_SETSIZE, kHistoryLines);
    ::history(history_, &event, H_SETUNIQUE, 1);
    ::el_set(editor_, EL_CLIENTDATA, this);
    ::el_set(editor_, EL_PROMPT, &Terminal::give_prompt);
    ::el_set(editor_, EL_EDITOR, "emacs");
    ::el_set(editor_, EL_HIST, ::history, history_);
    ::el_set(editor_, EL_GETCFN, &Terminal::read_character);
    ::el_set(editor_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    ::el_set(editor_, EL_SETTY, "-d", "-isig", nullptr);
  }
  ~Terminal() {
    ::history_end(history_);
    ::el_end(editor_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  Input read(const std::string& prompt) {
    prompt_ = prompt;
    is_interrupted_ = false;
    ::el_resize(editor_);
    int count = 0;
    const char* line = ::el_gets(editor_, &count);
    if (is_interrupted_) return {Outcome::kInterrupted, ""};
    if (line == nullptr || count <= 0) return {Outcome::kEnd, ""};
    std::string text(line, static_cast<size_t>(count));
    while (text.ends_with('\n') || text.ends_with('\r'))
      text.pop_back();
    HistEvent event;
    if (!text.empty()) ::history(history_, &event, H_ENTER, text.c_str());
    return {Outcome::kLine, std::move(text)};
  }

 private:
  static Terminal& self(EditLine* editor) {
    void* data = nullptr;
    ::el_get(editor, EL_CLIENTDATA, &data);
    return *static_cast<Terminal*>(data);
  }
  static char* give_prompt(EditLine* editor) { return self(editor).prompt_.data(); }
  /// The next character typed, as libedit wants it: 1, or 0 at the end and -1 on failure. Ctrl-C passes for the end of
  /// the line, which is then not used. (libedit could bind a function to the key, but would not free it.)
  static int read_character(EditLine* editor, wchar_t* character) {
    constexpr char kCtrlC = 3;
    constexpr wchar_t kReplacement = 0xfffd;
    std::mbstate_t state{};
    while (true) {
      char byte = 0;
      const ssize_t bytes = ::read(STDIN_FILENO, &byte, 1);
      if (bytes < 0 && errno == EINTR) continue;
      if (bytes <= 0) return static_cast<int>(bytes);
      if (byte == kCtrlC) {
        self(editor).is_interrupted_ = true;
        *character = L'\n';
        return 1;
      }
      const size_t length = std::mbrtowc(character, &byte, 1, &state);
      if (length == static_cast<size_t>(-2)) continue;  // a character of several bytes goes on
      if (length == static_cast<size_t>(-1)) *character = kReplacement;
      return 1;
    }
  }

  EditLine* editor_;
  History* history_;
  std::string prompt_;
  bool is_interrupted_ = false;
};

LineEditor::LineEditor() {
  if (::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1) terminal_ = std::make_unique<Terminal>();
}

LineEditor::~LineEditor() = default;

LineEditor::Input LineEditor::read(const std::string& prompt) {
  if (terminal_) return terminal_->read(prompt);
  std::string line;
  if (!std::getline(std::cin, line)) return {Outcome::kEnd, ""};
  return {Outcome::kLine, std::move(line)};
}

}  // namespace tidepool
