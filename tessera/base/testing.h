// What a user is told, for tests.
#pragma once

#include <string>

#include "tessera/base/error.h"

namespace tessera::testing {

/// The text of the UserError that `action` throws, or "no error".
template <typename Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace tessera::testing
