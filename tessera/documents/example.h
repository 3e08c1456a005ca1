// What a row of a data set says, whatever its keys.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "tessera/base/choices.h"
#include "tessera/chat/template.h"

namespace tessera::documents {

using Json = chat::Json;

/// A text whose beginning may be given.
struct Text {
  std::string prompt;
  std::string completion;
};

/// Messages as chat templates take them.
struct Conversation {
  chat::Inputs inputs;
  std::vector<bool> learned;  ///< of each message: does it count if the assistant says it?
};

using Example = std::variant<Text, Conversation>;

/// The shape that a row's keys tell; UserError that lists the row's keys if they tell none.
data::RowShape shape_of(const Json& row);

/// Is a row of `shape` a conversation, or a text?
bool is_conversation(const Json& row, data::RowShape shape);

/// Takes a row for one of `shape` (not automatic). UserError without the row's place: a key is missing or
/// of another type, a conversation has no message, begins with the assistant or has no answer.
/// Contents that are lists of text parts become one text; a null content is "". `learn` decides Conversation::learned.
Example read_example(const Json& row, data::RowShape shape, data::Learn learn);

}  // namespace tessera::documents
