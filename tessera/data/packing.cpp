#include "tessera/data/packing.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <set>

namespace tessera::data {

std::span<const uint32_t> Packing::row(int64_t row) const {
  const auto index = static_cast<size_t>(row);
  const size_t begin = index == 0 ? 0 : ends_[index - 1];
  return std::span(documents_).subspan(begin, ends_[index] - begin);
}

Packing pack(std::span<const int64_t> lengths, int64_t row_length) {
  std::vector<uint32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](uint32_t i) { return lengths[i]; });
  std::vector<std::vector<uint32_t>> rows;
  // Rows by the room that they have left; and which rooms there are.
  std::vector<std::vector<uint32_t>> with_room(static_cast<size_t>(row_length) + 1);
  std::set<int64_t> rooms;
  const auto put_back = [&](uint32_t row, int64_t room) {
    if (room == 0) return;
    with_room[static_cast<size_t>(room)].push_back(row);
    rooms.insert(room);
  };
  for (const uint32_t document : order) {
    const int64_t length = lengths[document];
    assert(0 < length && length <= row_length);
    const auto room = rooms.lower_bound(length);
    if (room == rooms.end()) {
      rows.push_back({document});
      put_back(static_cast<uint32_t>(rows.size() - 1), row_length - length);
      continue;
    }
    const int64_t left = *room - length;
    auto& candidates = with_room[static_cast<size_t>(*room)];
    const uint32_t row = candidates.back();
    candidates.pop_back();
    if (candidates.empty()) rooms.erase(room);
    rows[row].push_back(document);
    put_back(row, left);
  }
  Packing packing;
  for (const auto& row : rows) {
    packing.documents_.insert(packing.documents_.end(), row.begin(), row.end());
    packing.ends_.push_back(packing.documents_.size());
  }
  return packing;
}

Packing one_each(size_t num_documents) {
  Packing packing;
  packing.documents_.resize(num_documents);
  std::iota(packing.documents_.begin(), packing.documents_.end(), 0);
  packing.ends_.resize(num_documents);
  std::iota(packing.ends_.begin(), packing.ends_.end(), 1);
  return packing;
}

}  // namespace tessera::data
