// Names of a library's options in its messages, so that whoever calls it can tell them in a user's words.
#pragma once

#include <functional>
#include <string>

namespace tessera {

/// `message` with each word that may name an option replaced by what `renamed` makes of it ("": it stays). Such a word is
/// where it can be nothing else: it has an underscore, or begins the message ("train: .."), or follows "set".
std::string with_options_renamed(
    const std::string& message, const std::function<std::string(const std::string& word)>& renamed);

}  // namespace tessera
