// What a rank prints: shown by line, kept in a file, its end remembered.
#pragma once

#include <deque>
#include <string>
#include <string_view>

#include "tessera/base/file_descriptor.h"

namespace tessera::launch {

/// Writes all of `bytes`; gives up when the reader is gone (a closed pipe is not the ranks'
/// failure).
void write_all(int fd, std::string_view bytes);

struct RankStreamOptions {
  enum class Show { nothing, unchanged, prefixed } show = Show::prefixed;
  int shown_on = 1;           ///< file that it is shown on
  std::string prefix;         ///< of every line, when prefixed
  int log_fd = -1;            ///< gets every byte; -1: none
  size_t num_last_lines = 0;  ///< remembered
};

/// One pipe from a rank. Prefixed lines are written whole, so that ranks never mix within one; a
/// carriage return ends a line like a newline does, so that progress bars do not pile up, and so do
/// 64 KiB without either.
class RankStream {
 public:
  RankStream(FileDescriptor pipe, RankStreamOptions options);

  int fd() const { return pipe_.get(); }  ///< to poll; -1 once ended
  void read_some();                       ///< one read; blocks if there is nothing yet
  void drain();  ///< what can be read without waiting, then ends the stream
  const std::deque<std::string>& last_lines() const { return last_lines_; }

 private:
  void take(std::string_view bytes);
  void end_line(std::string& shown);
  void end();

  FileDescriptor pipe_;
  RankStreamOptions options_;
  std::string line_;  // not ended yet
  bool after_return_ = false;
  std::deque<std::string> last_lines_;
};

}  // namespace tessera::launch
