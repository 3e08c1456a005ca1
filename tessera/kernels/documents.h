// Several documents in one row: which tokens belong together.
//
// A table of documents is an int64 tensor [N, 2] on the CPU: tokens [begin, end) of the flat [B T] of
// a batch, ascending, none empty and none across rows. Tokens in none are padding. An undefined one
// says that each row is one document.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::kernels {

/// Tokens [begin, end) of a row.
struct Document {
  int64_t row = 0, begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

/// ValueError unless `documents` is a table for `batch` rows of `seq_len` tokens.
void check_documents(const at::Tensor& documents, int64_t batch, int64_t seq_len);

std::vector<Document> documents_in(const at::Tensor& documents, int64_t batch, int64_t seq_len);

/// Is every one of the batch's tokens in a document?
bool cover_all(const at::Tensor& documents, int64_t num_tokens);

/// int64 [B, T]: which document a token is in, -1 where it is in none.
at::Tensor document_indices(const at::Tensor& documents, int64_t batch, int64_t seq_len);

/// int64 [B, T]: a token's place in its document, from 0; 0 where it is in none.
at::Tensor document_positions(const at::Tensor& documents, int64_t batch, int64_t seq_len);

/// Tokens of the longest.
int64_t longest_document(const at::Tensor& documents, int64_t seq_len);

}  // namespace tessera::kernels
