// What may be shown of a value: configurations and environments are posted where others read them.
#pragma once

#include <string>

namespace tessera::config::accelerate {

/// `value` of the key or variable `name`, with "(hidden)" in place of what opens a door: all of it
/// where a word of the name ends as those of secrets do: token, secret, password, passphrase, key,
/// credentials, auth ("comet.api_key", "HF_TOKEN"); else what such a name is set to within it
/// ("[HF_TOKEN=..]", "{"token": ..}", "--token .."), what follows "Bearer", what begins as known
/// tokens do ("hf_.."), and user, password and query of addresses.
std::string shown_value(const std::string& name, std::string value);

}  // namespace tessera::config::accelerate
