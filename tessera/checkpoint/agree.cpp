#include "tessera/checkpoint/agree.h"

#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

constexpr char kDone = '+', kRefused = '?', kFailed = '-';

}  // namespace

std::vector<std::string> agree(const mesh::Axis& axis, const std::function<std::string()>& action) {
  std::string own;
  try {
    own = kDone + action();
  } catch (const UserError& error) {
    own = kRefused + std::string(error.what());
  } catch (const std::exception& error) {
    own = kFailed + std::string(error.what());
  }
  auto all = axis.all_gather_bytes(own);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const char kind = all[rank].front();
    if (kind == kDone) continue;
    const auto text = all[rank].substr(1);
    if (kind == kRefused) throw UserError(text);
    throw SystemError(all.size() == 1 ? text : fmt::format("rank {}: {}", rank, text));
  }
  for (auto& text : all) text.erase(0, 1);
  return all;
}

}  // namespace tessera::checkpoint
