// What ranks tell each other of a backward.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "tessera/parallel/data/engine.h"

namespace tessera::parallel {

/// Ranks agree on the parameters that took part in the loss: as in a plain model, the optimizer
/// leaves one alone that took part on no rank. And on the units that a backward reached after they
/// were launched: on another rank they may have been launched after it.
void DataParallel::Engine::agree_on_arrivals() {
  std::vector<int64_t> flags;
  const auto for_each = [&](const auto& visit) {
    for (auto& unit : units) {
      for (auto& buffer : unit.buffers()) {
        for (size_t i = 0; buffer.trained() && i < buffer.entries().size(); ++i) visit(buffer, i);
      }
    }
  };
  for (size_t i = 0; i < units.size(); ++i) {
    for (auto& buffer : units[i].buffers()) buffer.note_arrivals();
    flags.push_back(calls[i].again);
  }
  for_each([&](const auto& buffer, size_t i) { flags.push_back(buffer.arrived(i)); });
  const auto anywhere = torch::tensor(flags);
  axes.all.all_reduce(anywhere, comm::ReduceOp::max).wait();
  const auto* found = anywhere.const_data_ptr<int64_t>();
  for (auto& state : calls) state.again = *found++ != 0;
  for_each([&](auto& buffer, size_t i) { buffer.set_arrived(i, *found++ != 0); });
}

/// After the first backward, orders units as ranks ran them, if all ran them alike: those that did
/// not run first, so that their reductions, the last to be launched, hold up nobody's.
void DataParallel::Engine::agree_on_order() {
  std::vector<size_t> ran;
  for (const size_t unit : order) {
    if (!calls[unit].forwarded) ran.push_back(unit);
  }
  ran.insert(ran.end(), forwarded.begin(), forwarded.end());
  const auto text = fmt::format("{}", fmt::join(ran, " "));
  const auto all = axes.all.all_gather_bytes(text);
  if (std::ranges::count(all, text) == axes.all.size()) set_order(std::move(ran));
  order_known = true;
}

void DataParallel::Engine::set_order(std::vector<size_t> next) {
  order = std::move(next);
  place.resize(order.size());
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
}

}  // namespace tessera::parallel
