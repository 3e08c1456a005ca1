// Where the bytes of a rendered conversation come from.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tessera::chat {

/// The origin of some bytes. What a message says is of that message and field, whatever the template
/// cut, joined or replaced on the way; what the template wrote of its own has neither.
struct Source {
  int message = -1;  ///< index in `messages`; -1: of no message
  std::string
      field;      ///< of the message (content, tool_calls, ..), or the variable (tools, bos_token)
  int turn = -1;  ///< the message at which a loop over messages stood; -1: outside of one
  bool generated = false;  ///< inside of {% generation %}

  auto operator<=>(const Source&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14
};

using SourceId = uint32_t;

/// The sources of one rendering, each under a number; 0 is the template's own text outside of turns.
class Sources {
 public:
  Sources() { id({}); }

  SourceId id(const Source& source) {
    const auto [entry, is_new] = ids_.emplace(source, static_cast<SourceId>(all_.size()));
    if (is_new) all_.push_back(source);
    return entry->second;
  }
  const Source& operator[](SourceId id) const { return all_[id]; }
  const std::vector<Source>& all() const { return all_; }

 private:
  std::map<Source, SourceId> ids_;
  std::vector<Source> all_;
};

}  // namespace tessera::chat
