// Asking somebody at a terminal, or a script behind a pipe.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace tessera::cli {

struct MenuItem {
  std::string label;
  std::string note;  ///< behind the label; "": none
};

/// The item that is picked at the terminal `fd` with arrow keys and Enter, or by its number; the
/// `first` one is marked to begin with. The terminal reads as before afterwards, also when a signal
/// or Ctrl-C ends us. UserError if the terminal is gone or Ctrl-D is typed.
size_t pick(const std::string& question, const std::vector<MenuItem>& items, size_t first, int fd);

/// The same by lines of text on standard input and output: a number, a label or one of `words`;
/// an empty line is `first`. UserError at the end of the input; a wrong line is asked for again at
/// a terminal, and from anywhere else a UserError, as the next line answers another question.
size_t pick_by_line(const std::string& question, const std::vector<MenuItem>& items, size_t first,
                    const std::vector<std::string>& words);

/// Asks for a line for which problem(line) is ""; errors are those of pick_by_line.
std::string ask_line(const std::string& question, const std::string& default_value,
                     const std::function<std::string(const std::string&)>& problem);

}  // namespace tessera::cli
