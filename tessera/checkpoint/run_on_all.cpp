#include "tessera/checkpoint/run_on_all.h"

#include "tessera/base/error.h"
#include "tessera/base/path_error.h"
#include "tessera/checkpoint/damage.h"

namespace tessera::checkpoint {
namespace {

constexpr char kDone = '+', kDamaged = '!', kRefused = '?', kFailed = '-';

}  // namespace

std::vector<std::string> run_on_all(const mesh::Axis& axis,
                                    const std::function<std::string()>& action) {
  std::string own;
  try {
    own = kDone + with_path_errors(action);
  } catch (const DamagedCheckpoint& error) {
    own = kDamaged + std::string(error.what());
  } catch (const UserError& error) {
    own = kRefused + std::string(error.what());
  } catch (const std::exception& error) {
    own = kFailed + std::string(error.what());
  }
  auto all = axis.all_gather_bytes(own);
  // Damage that one rank finds counts only if no other failed for another reason.
  for (const char kind : {kFailed, kRefused, kDamaged}) {
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank].front() != kind) continue;
      const auto text = all[rank].substr(1);
      if (kind == kDamaged) throw DamagedCheckpoint(text);
      if (kind == kRefused) throw UserError(text);
      throw SystemError(all.size() == 1 ? text : fmt::format("rank {}: {}", rank, text));
    }
  }
  for (auto& text : all) text.erase(0, 1);
  return all;
}

}  // namespace tessera::checkpoint
