#include "tessera/data/mixed_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "tessera/base/digest.h"

namespace tessera::data {

MixedRows::MixedRows(std::vector<std::shared_ptr<const Rows>> sources, std::vector<double> weights)
    : sources_(std::move(sources)), weights_(std::move(weights)) {
  assert(!sources_.empty() && (weights_.empty() || weights_.size() == sources_.size()));
  int64_t end = 0, documents = 0;
  for (const auto& source : sources_) {
    ends_.push_back(end += source->size());
    first_documents_.push_back(documents);
    documents += source->num_documents();
  }
}

int64_t MixedRows::num_documents() const {
  return first_documents_.back() + sources_.back()->num_documents();
}

int64_t MixedRows::num_tokens() const {
  int64_t sum = 0;
  for (const auto& source : sources_) sum += source->num_tokens();
  return sum;
}

std::string MixedRows::digest() const {
  std::string parts = fmt::format("{}", fmt::join(weights_, ","));
  for (const auto& source : sources_) parts += "," + source->digest();
  return sha256(parts);
}

std::vector<WeightedRows> MixedRows::sources() const {
  if (weights_.empty()) return Rows::sources();
  std::vector<WeightedRows> list;
  for (size_t i = 0; i < sources_.size(); ++i) list.push_back({sources_[i]->size(), weights_[i]});
  return list;
}

void MixedRows::read(int64_t row, std::span<int64_t> inputs, std::span<int64_t> targets,
                     std::vector<DocumentRange>& documents) const {
  const auto source = static_cast<size_t>(std::ranges::upper_bound(ends_, row) - ends_.begin());
  const size_t before = documents.size();
  sources_[source]->read(source == 0 ? row : row - ends_[source - 1], inputs, targets, documents);
  for (size_t i = before; i < documents.size(); ++i) documents[i].index += first_documents_[source];
}

}  // namespace tessera::data
