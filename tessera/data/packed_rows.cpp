#include "tessera/data/packed_rows.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {

using documents::id_of;
using documents::is_learned;
using documents::MarkedToken;

bool has_target(std::span<const MarkedToken> document, int64_t inputs) {
  return std::ranges::any_of(document.subspan(1, static_cast<size_t>(inputs)), is_learned);
}

}  // namespace

PackedRows::PackedRows(std::shared_ptr<const documents::Documents> documents,
                       std::vector<uint32_t> chosen, const PackedRowsOptions& options)
    : documents_(std::move(documents)), options_(options) {
  if (options.seq_len < 1) user_error("seq_len: expected at least 1, got {}", options.seq_len);
  std::vector<int64_t> lengths;
  const auto sum = [](const std::vector<int64_t>& inputs) {
    return std::accumulate(inputs.begin(), inputs.end(), int64_t{0});
  };
  for (const uint32_t index : chosen) {
    const auto together = documents_->of_row(index);
    const auto inputs = documents::inputs_within(options.seq_len, together);
    const auto length = sum(inputs);
    const auto whole = sum(documents::inputs_within(std::numeric_limits<int64_t>::max(), together));
    const bool is_cut = length < whole;
    if (is_cut && options.too_long == TooLong::error) {
      user_error(
          "row {} of {}: expected at most seq_len {} tokens to go on from, got {}; set seq_len, "
          "or too_long to cut or drop",
          index + 1, options.name, options.seq_len, whole);
    }
    bool all_learn = true;
    for (size_t i = 0; i < together.size(); ++i) all_learn &= has_target(together[i], inputs[i]);
    if ((is_cut && options.too_long == TooLong::drop) || !all_learn) {
      ++counts_.dropped;
      continue;
    }
    counts_.cut += is_cut ? 1 : 0;
    counts_.tokens += length;
    chosen_.push_back(index);
    lengths.push_back(length);
  }
  if (chosen_.empty()) {
    user_error(
        "{}: none of {} rows{} has anything to learn within seq_len {}; set a larger seq_len{}",
        options.name, chosen.size(), options.held_out ? " that validation_fraction holds out" : "",
        options.seq_len, options.held_out ? ", or validation_fraction to 0 or to more" : "");
  }
  packing_ = options.packing ? pack(lengths, options.seq_len) : one_each(chosen_.size());
  counts_.packed = std::ssize(chosen_);
  counts_.rows = size();
}

void PackedRows::read(int64_t row, std::span<int64_t> inputs, std::span<int64_t> targets,
                      std::vector<DocumentRange>& documents) const {
  assert(0 <= row && row < size() && std::ssize(inputs) == seq_len() &&
         inputs.size() == targets.size());
  std::ranges::fill(inputs, 0);
  std::ranges::fill(targets, kIgnoredTarget);
  int64_t at = 0;
  for (const uint32_t place : packing_.row(row)) {
    const auto index = static_cast<int64_t>(chosen_[place]);
    const auto together = documents_->of_row(chosen_[place]);
    const auto lengths = documents::inputs_within(seq_len(), together);
    for (size_t part = 0; part < together.size(); ++part) {
      const auto document = together[part];
      for (int64_t i = 0; i < lengths[part]; ++i) {
        const auto next = document[static_cast<size_t>(i) + 1];
        inputs[static_cast<size_t>(at + i)] = id_of(document[static_cast<size_t>(i)]);
        if (is_learned(next)) targets[static_cast<size_t>(at + i)] = id_of(next);
      }
      documents.push_back({.begin = at,
                           .end = at + lengths[part],
                           .index = index * std::ssize(together) + static_cast<int64_t>(part)});
      at += lengths[part];
    }
  }
}

DividedRows divide_rows(size_t num_rows, double validation_fraction) {
  DividedRows divided;
  const auto wanted =
      static_cast<size_t>(std::llround(validation_fraction * static_cast<double>(num_rows)));
  const size_t held_out =
      validation_fraction > 0 ? std::clamp<size_t>(wanted, 1, std::max<size_t>(num_rows, 1)) : 0;
  for (size_t i = 0; i < num_rows; ++i) {
    // The last of each stretch of equal length.
    const bool is_held_out = (i + 1) * held_out / num_rows > i * held_out / num_rows;
    (is_held_out ? divided.validation : divided.train).push_back(static_cast<uint32_t>(i));
  }
  return divided;
}

}  // namespace tessera::data
