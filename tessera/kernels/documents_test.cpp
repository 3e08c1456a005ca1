// Several documents in a row against each by itself.
#include "tessera/kernels/documents.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>
#include <vector>

#include "tessera/kernels/attention.h"
#include "tessera/kernels/rotary.h"
#include "tessera/kernels/testing.h"

namespace tessera::kernels {
namespace {

constexpr int64_t kBatch = 2, kLength = 201, kHeads = 6, kKeyHeads = 2, kDim = 24;

/// Documents of 1, 130, 3 and 60 tokens with padding behind them, then a row that is full.
at::Tensor documents() {
  return at::tensor(std::vector<int64_t>{0, 1, 1, 131, 131, 134, 134, 194, 201, 300, 300, 402},
                    at::kLong)
      .view({-1, 2});
}

struct Setting {
  at::ScalarType dtype;
  AttentionOptions options;
  double error;
};

/// Result and gradients of q, k and v.
std::vector<at::Tensor> results_with(const Setting& c, const std::vector<at::Tensor>& values,
                                     const at::Tensor& table) {
  std::vector<at::Tensor> leaves;
  for (int i = 0; i < 3; ++i) leaves.push_back(values[i].detach().requires_grad_(true));
  const auto out = attention(leaves[0], leaves[1], leaves[2], c.options, table);
  auto results = torch::autograd::grad({out}, leaves, {values[3]});
  results.insert(results.begin(), out.detach());
  return results;
}

void expect_as_if_alone(const Setting& c) {
  at::manual_seed(5);
  std::vector<at::Tensor> values;
  for (const auto heads : {kHeads, kKeyHeads, kKeyHeads, kHeads}) {
    values.push_back(at::randn({kBatch, kLength, heads, kDim}).to(c.dtype));
  }
  const auto together = results_with(c, values, documents());
  auto covered = at::zeros({kBatch, kLength}, at::kBool);
  for (const auto& document : documents_in(documents(), kBatch, kLength)) {
    const auto part = [&](const at::Tensor& x) {
      return x.narrow(0, document.row, 1).narrow(1, document.begin, document.size());
    };
    part(covered).fill_(true);
    std::vector<at::Tensor> own;
    for (const auto& value : values) own.push_back(part(value).contiguous());
    const auto alone = results_with(c, own, {});
    for (size_t i = 0; i < alone.size(); ++i) {
      const auto difference = (part(together[i]) - alone[i]).abs().max().item<double>();
      EXPECT_LE(difference, c.error) << "result " << i << " of [" << document.begin << ", "
                                     << document.end << ") in row " << document.row;
    }
  }
  for (const auto& result : together) {
    EXPECT_EQ(result.masked_select(covered.logical_not().view({kBatch, kLength, 1, 1}))
                  .abs()
                  .max()
                  .item<double>(),
              0);
  }
}

TEST(Documents, AttentionIsThatOfEachAlone) {
  for (const Isa isa : usable_sets()) {
    const IsaScope scope(isa);
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      expect_as_if_alone({dtype, {}, 0});  // bit for bit
      expect_as_if_alone({dtype, {.causal = false}, 0});
      expect_as_if_alone({dtype, {.window = 40}, 0});
      expect_as_if_alone({dtype, {.softcap = 3}, 0});
    }
  }
  expect_as_if_alone({at::kDouble, {}, 1e-12});  // LibTorch's, with a mask
  expect_as_if_alone({at::kDouble, {.causal = false}, 1e-12});
  expect_as_if_alone({at::kDouble, {.window = 40}, 1e-12});
  expect_as_if_alone({at::kDouble, {.softcap = 3}, 1e-12});
}

TEST(Documents, BitsDoNotDependOnThreads) {
  at::manual_seed(6);
  std::vector<at::Tensor> values;
  for (const auto heads : {kHeads, kKeyHeads, kKeyHeads, kHeads}) {
    values.push_back(at::randn({kBatch, kLength, heads, kDim}));
  }
  const Setting c{at::kFloat, {}, 0};
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const auto one = results_with(c, values, documents());
  at::set_num_threads(3);
  const auto three = results_with(c, values, documents());
  at::set_num_threads(threads);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], three[i])) << i;
}

TEST(Documents, RotationsOfEachTokenAreThoseOfItsPlace) {
  at::manual_seed(7);
  const auto x = at::randn({kBatch, kLength, kHeads, kDim});
  const auto [cos, sin] = rotary_tables(kLength, kDim);
  const auto places = document_positions(documents(), kBatch, kLength);
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const auto rotated = rotary(x.to(dtype), cos.index({places}), sin.index({places}));
    for (const auto& document : documents_in(documents(), kBatch, kLength)) {
      const auto part = [&](const at::Tensor& of) {
        return of.narrow(0, document.row, 1).narrow(1, document.begin, document.size());
      };
      EXPECT_TRUE(at::equal(part(rotated), rotary(part(x).to(dtype), cos, sin)));
    }
  }
}

TEST(Documents, TablesSayWhichTokenIsWhere) {
  const auto table = at::tensor(std::vector<int64_t>{0, 2, 2, 3, 5, 7}, at::kLong).view({3, 2});
  const auto of = [](std::vector<int64_t> values) {
    return at::tensor(values, at::kLong).view({2, 4});
  };
  EXPECT_TRUE(at::equal(document_indices(table, 2, 4), of({0, 0, 1, -1, -1, 2, 2, -1})));
  EXPECT_TRUE(at::equal(document_positions(table, 2, 4), of({0, 1, 0, 0, 0, 0, 1, 0})));
  EXPECT_EQ(longest_document(table, 4), 2);
  EXPECT_EQ(longest_document({}, 4), 4);
  EXPECT_FALSE(cover_all(table, 8));
  EXPECT_TRUE(cover_all({}, 8));
}

TEST(Documents, RefusesTablesThatAreNone) {
  const auto refused = [](std::vector<int64_t> bounds) {
    const auto table = at::tensor(bounds, at::kLong).view({-1, 2});
    EXPECT_THROW(check_documents(table, 2, 4), c10::ValueError);
  };
  refused({0, 5});        // across rows
  refused({0, 0});        // empty
  refused({2, 4, 1, 2});  // not ascending
  refused({0, 3, 2, 4});  // one in another
  refused({4, 9});        // behind the end
  refused({-1, 2});
  EXPECT_THROW(check_documents(at::zeros({2, 2}), 2, 4), c10::ValueError);
  const auto x = at::randn({1, 4, 1, 8});
  EXPECT_THROW(attention(x.narrow(1, 0, 2), x, x, {}, at::tensor({0, 2}, at::kLong).view({1, 2})),
               c10::ValueError);
}

}  // namespace
}  // namespace tessera::kernels
