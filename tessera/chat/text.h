// A string of which every byte knows its source.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/chat/source.h"

namespace tessera::chat {

/// UTF-8 with its sources. Positions are bytes; whoever cuts does so between characters.
class Text {
 public:
  /// Bytes of one source, from where the run before it ends.
  struct Run {
    size_t end;
    SourceId source;
  };

  Text() = default;
  Text(std::string_view bytes, SourceId source) { append(bytes, source); }

  void append(std::string_view bytes, SourceId source);
  void append(const Text& other, size_t begin = 0, size_t end = std::string::npos);
  Text slice(size_t begin, size_t end) const;

  const std::string& bytes() const { return bytes_; }
  std::string_view view() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  const std::vector<Run>& runs() const { return runs_; }
  /// The source of the byte at `at`; `otherwise` at the end.
  SourceId source_at(size_t at, SourceId otherwise = 0) const;

  /// The same bytes with every source changed.
  template <typename Change>
  Text with_sources(const Change& change) const {
    Text changed;
    size_t begin = 0;
    for (const auto& [end, source] : runs_) {
      changed.append(view().substr(begin, end - begin), change(source));
      begin = end;
    }
    return changed;
  }

 private:
  std::string bytes_;
  std::vector<Run> runs_;
};

}  // namespace tessera::chat
