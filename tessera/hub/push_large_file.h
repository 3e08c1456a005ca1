// One large file to where the Hub wants it.
#pragma once

#include <optional>
#include <string_view>

#include "tessera/hub/repository.h"

namespace tessera::hub {

/// Sends `content`, whole or in parts, as `transfer` says, and lets it be verified. Each part is tried
/// as often as downloads are; where the address has expired, another is asked for. `on_sent` hears how
/// much is there.
void push_large_file(Repository& repository, const LargeObject& object, std::string_view content,
                     std::optional<LargeTransfer> transfer, const Settings& settings,
                     const OnSent& on_sent);

}  // namespace tessera::hub
