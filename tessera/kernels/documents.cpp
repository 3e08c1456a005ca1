#include "tessera/kernels/documents.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <span>

namespace tessera::kernels {
namespace {

/// begin, end, begin, end, ..
std::span<const int64_t> bounds_of(const at::Tensor& documents) {
  return {documents.const_data_ptr<int64_t>(), static_cast<size_t>(documents.numel())};
}

/// `value(document, place)` for each token of a document, `otherwise` for the rest.
template <typename Value>
at::Tensor for_each_token(const at::Tensor& documents, int64_t batch, int64_t seq_len,
                          int64_t otherwise, const Value& value) {
  auto result = at::full({batch, seq_len}, otherwise, at::kLong);
  auto* tokens = result.mutable_data_ptr<int64_t>();
  const auto bounds = bounds_of(documents);
  for (size_t i = 0; i < bounds.size(); i += 2) {
    for (int64_t token = bounds[i]; token < bounds[i + 1]; ++token) {
      tokens[token] = value(static_cast<int64_t>(i / 2), token - bounds[i]);
    }
  }
  return result;
}

}  // namespace

void check_documents(const at::Tensor& documents, int64_t batch, int64_t seq_len) {
  if (!documents.defined()) return;
  TORCH_CHECK_VALUE(documents.dim() == 2 && documents.size(1) == 2 && documents.is_cpu() &&
                        documents.scalar_type() == at::kLong && documents.is_contiguous(),
                    "documents: expected int64 [N, 2] on the CPU, got ", documents.scalar_type(),
                    " ", documents.sizes(), " on ", documents.device());
  const auto bounds = bounds_of(documents);
  int64_t before = 0;
  for (size_t i = 0; i < bounds.size(); i += 2) {
    const int64_t begin = bounds[i], end = bounds[i + 1];
    TORCH_CHECK_VALUE(before <= begin && begin < end && end <= batch * seq_len &&
                          begin / seq_len == (end - 1) / seq_len,
                      "documents: expected ascending parts of rows of ", seq_len, " tokens, got [",
                      begin, ", ", end, ") behind ", before, " in ", batch, " rows");
    before = end;
  }
}

std::vector<Document> documents_in(const at::Tensor& documents, int64_t batch, int64_t seq_len) {
  std::vector<Document> result;
  if (!documents.defined()) {
    for (int64_t row = 0; row < batch; ++row) result.push_back({row, 0, seq_len});
    return result;
  }
  const auto bounds = bounds_of(documents);
  for (size_t i = 0; i < bounds.size(); i += 2) {
    const int64_t row = bounds[i] / seq_len, first = row * seq_len;
    result.push_back({row, bounds[i] - first, bounds[i + 1] - first});
  }
  return result;
}

bool cover_all(const at::Tensor& documents, int64_t num_tokens) {
  if (!documents.defined()) return true;
  const auto bounds = bounds_of(documents);
  for (size_t i = 0; i < bounds.size(); i += 2) num_tokens -= bounds[i + 1] - bounds[i];
  return num_tokens == 0;
}

at::Tensor document_indices(const at::Tensor& documents, int64_t batch, int64_t seq_len) {
  return for_each_token(documents, batch, seq_len, -1,
                        [](int64_t document, int64_t) { return document; });
}

at::Tensor document_positions(const at::Tensor& documents, int64_t batch, int64_t seq_len) {
  return for_each_token(documents, batch, seq_len, 0, [](int64_t, int64_t place) { return place; });
}

int64_t longest_document(const at::Tensor& documents, int64_t seq_len) {
  if (!documents.defined()) return seq_len;
  const auto bounds = bounds_of(documents);
  int64_t longest = 0;
  for (size_t i = 0; i < bounds.size(); i += 2)
    longest = std::max(longest, bounds[i + 1] - bounds[i]);
  return longest;
}

}  // namespace tessera::kernels
