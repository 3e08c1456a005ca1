#include "tessera/hub/retries.h"

#include <chrono>
#include <thread>

namespace tessera::hub {

void Retries::after_failure() {
  if (++failures_ >= settings_.max_attempts) throw;
  const double seconds = settings_.retry_seconds * static_cast<double>(1 << (failures_ - 1));
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

}  // namespace tessera::hub
