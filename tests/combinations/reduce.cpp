#include "tests/combinations/reduce.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

namespace tessera::combinations {
namespace {

/// Every trial with one thing less.
std::vector<Trial> smaller(const Trial& trial) {
  std::vector<Trial> list;
  const auto add = [&](const auto& change) {
    auto other = trial;
    change(other);
    list.push_back(std::move(other));
  };
  if (trial.resumed) {
    add([](Trial& other) { other.resumed.reset(); });
    add([](Trial& other) {
      other.layout = *other.resumed;
      other.resumed.reset();
    });
    for (const auto& item : *trial.resumed) {
      add([&](Trial& other) { other.resumed->erase(item.first); });
    }
  }
  // The sizes of a mesh make its number of ranks, so they go together.
  const auto is_of_ranks = [](const auto& item) { return item.first.starts_with("parallel."); };
  if (std::ranges::any_of(trial.layout, is_of_ranks)) {
    add([&](Trial& other) { std::erase_if(other.layout, is_of_ranks); });
  }
  for (const auto& item : trial.layout) {
    add([&](Trial& other) { other.layout.erase(item.first); });
  }
  for (const auto& item : trial.function) {
    add([&](Trial& other) { other.function.erase(item.first); });
  }
  for (size_t begin = 0; begin < trial.accelerate.size();) {
    const auto end = std::min(trial.accelerate.find('\n', begin), trial.accelerate.size() - 1) + 1;
    add([&](Trial& other) { other.accelerate.erase(begin, end - begin); });
    begin = end;
  }
  const auto shape = [&](auto models::ModelShape::*member, auto value) {
    if (trial.shape.*member != value) add([&](Trial& other) { other.shape.*member = value; });
  };
  shape(&models::ModelShape::num_layers, 1);
  shape(&models::ModelShape::num_layers, std::max<int64_t>(1, trial.shape.num_layers - 1));
  shape(&models::ModelShape::tie_embeddings, false);
  shape(&models::ModelShape::sliding_window, 0);
  return list;
}

}  // namespace

Trial reduced(Trial trial, const std::function<bool(const Trial&)>& fails) {
  for (bool changed = true; changed;) {
    changed = false;
    for (auto& other : smaller(trial)) {
      const bool accepted = other.accelerate.empty() == trial.accelerate.empty() &&
                            !refusal(other, other.layout) &&
                            (!other.resumed || !refusal(other, *other.resumed));
      if (!accepted || !fails(other)) continue;
      trial = std::move(other);
      changed = true;
      break;
    }
  }
  return trial;
}

}  // namespace tessera::combinations
