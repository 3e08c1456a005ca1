// Standard input, which rank 0 has, for every rank; and standard output.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tessera/mesh/mesh.h"

namespace tessera::inference {

/// From now on SIGINT is noted instead of ending this process; what waits for input returns.
void note_interrupts();

/// On rank 0, at once. To a terminal, what would steer it (control characters) is shown escaped.
/// SystemError if it cannot be written.
void write_out(const mesh::DeviceMesh& mesh, std::string_view text);
/// On rank 0, a line on standard error; none for "".
void write_note(const mesh::DeviceMesh& mesh, std::string_view line);

class Input {
 public:
  /// All ranks call everything here together.
  explicit Input(const mesh::DeviceMesh& mesh) : ranks_(mesh.world()) {}

  /// The next line without its end (LF, CR LF), or the rest; none at the end of input or by an interrupt. A user
  /// may take as long as they like.
  std::optional<std::string> line();
  std::string all();
  bool interrupted() const { return interrupted_; }  ///< has an interrupt ended it?
  /// Has rank 0 had an interrupt since the last call?
  bool take_interrupt();

 private:
  std::optional<std::string> shared(bool whole);
  std::string told(const std::string& message);
  bool wait_and_read();

  const mesh::Axis& ranks_;
  std::string waiting_;  ///< read, but not a line yet
  bool at_end_ = false, interrupted_ = false;
};

}  // namespace tessera::inference
