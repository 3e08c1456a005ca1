#include "tessera/data/packed_rows.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {

using documents::id_of;
using documents::is_learned;
using documents::MarkedToken;

/// Inputs of a document: its last token is predicted alone.
int64_t inputs_of(std::span<const MarkedToken> document) {
  return static_cast<int64_t>(document.size()) - 1;
}

}  // namespace

PackedRows::PackedRows(std::shared_ptr<const documents::Documents> documents,
                       std::vector<uint32_t> chosen, const PackedRowsOptions& options)
    : documents_(std::move(documents)), options_(options) {
  if (options.seq_len < 1) user_error("seq_len: expected at least 1, got {}", options.seq_len);
  std::vector<int64_t> lengths;
  for (const uint32_t index : chosen) {
    const auto document = (*documents_)[index];
    const int64_t length = std::min(inputs_of(document), options.seq_len);
    const bool is_cut = length < inputs_of(document);
    if (is_cut && options.too_long == TooLong::error) {
      user_error(
          "document {} of train: expected at most seq_len {} tokens and one more, got {}; set "
          "seq_len, or too_long to "
          "cut or drop",
          index + 1, options.seq_len, document.size());
    }
    const auto targets = document.subspan(1, static_cast<size_t>(length));
    if ((is_cut && options.too_long == TooLong::drop) ||
        std::ranges::none_of(targets, is_learned)) {
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
        "train: none of {} documents has anything to learn within seq_len {}; set a larger seq_len",
        chosen.size(), options.seq_len);
  }
  packing_ = options.packing ? pack(lengths, options.seq_len) : one_each(chosen_.size());
  counts_.documents = std::ssize(chosen_);
  counts_.rows = size();
}

void PackedRows::read(int64_t row, std::span<int64_t> inputs, std::span<int64_t> targets,
                      std::vector<DocumentRange>& documents) const {
  assert(0 <= row && row < size() && std::ssize(inputs) == seq_len() &&
         inputs.size() == targets.size());
  std::ranges::fill(inputs, 0);
  std::ranges::fill(targets, kIgnoredTarget);
  int64_t at = 0;
  for (const uint32_t index : packing_.row(row)) {
    const auto document = (*documents_)[chosen_[index]];
    const int64_t length = std::min(inputs_of(document), seq_len() - at);
    for (int64_t i = 0; i < length; ++i) {
      const auto place = static_cast<size_t>(at + i);
      const auto next = document[static_cast<size_t>(i) + 1];
      inputs[place] = id_of(document[static_cast<size_t>(i)]);
      if (is_learned(next)) targets[place] = id_of(next);
    }
    documents.push_back({at, at + length});
    at += length;
  }
}

DividedDocuments divide_documents(size_t num_documents, double validation_fraction) {
  DividedDocuments divided;
  const auto wanted =
      static_cast<size_t>(std::llround(validation_fraction * static_cast<double>(num_documents)));
  const size_t held_out = validation_fraction > 0
                              ? std::clamp<size_t>(wanted, 1, std::max<size_t>(num_documents, 1))
                              : 0;
  for (size_t i = 0; i < num_documents; ++i) {
    // The last of each stretch of equal length.
    const bool is_held_out = (i + 1) * held_out / num_documents > i * held_out / num_documents;
    (is_held_out ? divided.validation : divided.train).push_back(static_cast<uint32_t>(i));
  }
  return divided;
}

}  // namespace tessera::data
