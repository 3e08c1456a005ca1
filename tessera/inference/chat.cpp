#include "tessera/inference/chat.h"

#include <fmt/format.h>

#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/utf8.h"
#include "tessera/inference/console.h"

namespace tessera::inference {
namespace {

constexpr const char* kHelp =
    "/reset         begin anew\n"
    "/system TEXT   begin anew with this system prompt; none without TEXT\n"
    "/save FILE     write the conversation as a row that can be trained on\n"
    "/exit          leave (or Ctrl-D)\n"
    "Ctrl-C         stop an answer\n";

constexpr int kInterruptedExit = 128 + SIGINT;

std::string without_blanks(const std::string& text) {
  const auto begin = text.find_first_not_of(' ');
  return begin == std::string::npos ? ""
                                    : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

class Chat {
 public:
  Chat(const Request& request, Session& session, const mesh::DeviceMesh& mesh)
      : request_(request), session_(session), mesh_(mesh), input_(mesh), system_(request.system) {
    reset();
    if (request_.interactive) note_interrupts();
  }

  int run() {
    if (request_.interactive) write("/help says what can be typed here.\n");
    for (;;) {
      if (request_.interactive) write("> ");
      const auto line = input_.line();
      if (!line && request_.interactive) write("\n");
      if (!line) return input_.interrupted() ? kInterruptedExit : 0;
      if (!line->empty() && !(line->front() == '/' ? obey(*line) : answer(*line))) return 0;
    }
  }

 private:
  void write(std::string_view text) const { write_out(mesh_, text); }

  void reset() {
    inputs_.messages = chat::Json::array();
    if (!system_.empty()) add("system", system_);
  }

  void add(const char* role, const std::string& content) {
    inputs_.messages.push_back({{"role", role}, {"content", content}});
  }

  bool answer(const std::string& text) {
    const auto before = inputs_.messages;
    add("user", text);
    try {
      if (!is_utf8(text)) user_error("the message is no UTF-8");
      const auto said = session_.go_on(session_.tokens_of(inputs_), [&](const std::string& piece) {
        write(piece);
        return !(request_.interactive && input_.take_interrupt());
      });
      write("\n");
      add("assistant", said.text);
      write_note(mesh_, end_line(said));
      if (request_.speed) write_note(mesh_, speed_line(said));
    } catch (const UserError& error) {
      complain(error);
      inputs_.messages = before;
    }
    return true;
  }

  /// A user at a terminal can go on another way.
  void complain(const UserError& error) const {
    if (!request_.interactive) throw UserError(error);
    write_note(mesh_, error.what());
  }

  /// False: the user leaves.
  bool obey(const std::string& line) {
    const auto blank = line.find(' ');
    const auto command = line.substr(0, blank);
    const auto argument = blank == std::string::npos ? "" : without_blanks(line.substr(blank));
    if (command == "/exit" || command == "/quit") return false;
    if (command == "/help") return write(kHelp), true;
    if (command == "/system") system_ = argument;
    if (command == "/system" || command == "/reset") return reset(), true;
    try {
      if (command != "/save") user_error("unknown command {}; /help lists them", command);
      save(argument);
    } catch (const UserError& error) {
      complain(error);
    }
    return true;
  }

  void save(const std::string& file) const {
    if (file.empty()) user_error("/save: expected a file's name");
    if (inputs_.messages.size() < 2) user_error("/save: there is no answer yet");
    if (mesh_.rank() != 0) return;
    if (is_there(file)) user_error("/save: {}: is there already; give another name", file);
    const auto folder = std::filesystem::absolute(file).parent_path();
    if (const auto reason = why_not_writable(folder); !reason.empty())
      user_error("/save: {}: cannot be written: {}", file, reason);
    std::filesystem::create_directories(folder);
    const chat::Json row{{"messages", inputs_.messages}};
    write_file(file, row.dump(-1, ' ', false, chat::Json::error_handler_t::replace) + "\n");
    write(fmt::format("saved {} messages\n", inputs_.messages.size()));
  }

  const Request& request_;
  Session& session_;
  const mesh::DeviceMesh& mesh_;
  Input input_;
  std::string system_;
  chat::Inputs inputs_;
};

}  // namespace

int chat(const Request& request, Session& session, const mesh::DeviceMesh& mesh) {
  return Chat(request, session, mesh).run();
}

}  // namespace tessera::inference
