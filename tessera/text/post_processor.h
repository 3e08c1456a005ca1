// What stands around a text's tokens: the `post_processor` of tokenizer.json.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::text {

struct TemplatePart {
  enum class Kind { first, second, special } kind = Kind::first;
  std::vector<uint32_t> ids;  ///< of a special one
  uint32_t type_id = 0;
};
using Template = std::vector<TemplatePart>;

struct PostProcessor {
  struct Trim {
    bool prefix_space = true;  ///< a single blank at the begin of a text was put there
  };
  std::vector<Trim> trims;  ///< offsets leave out the blanks at the ends of a token
  std::optional<Template> single, pair;
};

}  // namespace tessera::text
