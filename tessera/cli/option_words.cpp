#include "tessera/cli/option_words.h"

#include <map>

#include "tessera/base/option_words.h"

namespace tessera::cli {

std::string with_command_options(const std::string& message) {
  static const std::map<std::string, std::string> options{
      {"skip_bad_lines", "--skip-bad-lines"},   {"shape", "--shape"},
      {"chat_template", "--chat-template"},     {"paths", "FOLDER"},
      {"any_file_system", "--any-file-system"}, {"seq_len", "--seq-len"}};
  return with_options_renamed(message, [](const std::string& word) {
    const auto option = options.find(word);
    return option == options.end() ? "" : option->second;
  });
}

}  // namespace tessera::cli
