// Patience with servers.
#pragma once

#include "tessera/hub/http.h"
#include "tessera/hub/settings.h"

namespace tessera::hub {

/// Counts failures in a row.
class Retries {
 public:
  explicit Retries(const Settings& settings) : settings_(settings) {}

  /// To be called where Unreachable is caught: waits before the next attempt, twice as long each
  /// time, or throws it again after the last.
  void after_failure();
  void after_success() { failures_ = 0; }

 private:
  const Settings& settings_;
  int failures_ = 0;
};

/// What `action` returns, as often tried as it takes; a host that does not exist is no use waiting
/// for.
template <typename Action>
auto with_retries(const Settings& settings, const Action& action) {
  for (Retries retries(settings);;) {
    try {
      return action();
    } catch (const NoSuchHost&) {
      throw;
    } catch (const Unreachable&) {
      retries.after_failure();
    }
  }
}

}  // namespace tessera::hub
