// Lists of messages as conversations.
#pragma once

#include <cstddef>
#include <string>

#include "tessera/documents/example.h"

namespace tessera::documents {

/// The value of a key that is there and not null; else nullptr.
const Json* find(const Json& object, const char* key);

Json message(const char* role, std::string content);

/// Messages from `answers_from` on are what is learned, as far as `learn` lets. UserError with the number of a message that is
/// none, or of an answer that is empty.
Conversation conversation_of(const Json& messages, Json tools, data::Learn learn,
                             size_t answers_from = 0);

}  // namespace tessera::documents
