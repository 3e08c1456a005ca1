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

/// Two answers to one prompt, which is not learned.
struct Pair {
  Example chosen, rejected;
};

/// The shape that a row's keys tell; UserError that lists the row's keys if they tell none.
data::RowShape shape_of(const Json& row);

/// Is a row of `shape` a conversation, or a text?
bool is_conversation(const Json& row, data::RowShape shape);

/// Takes a row for one of `shape` (neither automatic nor preference). UserError without the row's place: a key is missing or
/// of another type, a conversation has no message, begins with the assistant or has no answer.
/// Contents that are lists of text parts become one text; a null content is "". `learn` decides Conversation::learned.
Example read_example(const Json& row, data::RowShape shape, data::Learn learn);

/// Takes a row for a pair. Texts or messages at "prompt" stand before both answers; without it, what the
/// answers begin with alike does. A text at "prompt" before messages is the user's, unless they begin with
/// it. UserError without the row's place: an answer is missing, of another type or equal to the other.
Pair read_pair(const Json& row, data::Learn learn);

}  // namespace tessera::documents
