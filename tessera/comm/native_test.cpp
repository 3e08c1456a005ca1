// The calls to a backend's own collectives, made here to Gloo; NCCL takes the same.
#include "tessera/comm/native.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "tessera/comm/exchange.h"
#include "tessera/comm/gloo.h"
#include "tessera/comm/store.h"
#include "tests/support/ranks.h"

namespace tessera::comm {
namespace {

/// A Gloo backend over the ranks of `axis`, without a group around it.
c10::intrusive_ptr<c10d::Backend> bare_gloo(const Group& axis) {
  Rendezvous where{.rank = axis.rank(), .world_size = axis.size()};
  Listener listener;
  if (axis.rank() == 0) {
    listener = listen_on("127.0.0.1", 0);
    where.listen_fd = listener.fd;
  }
  where.master_port = std::stoi(axis.all_gather_bytes(std::to_string(listener.port))[0]);
  const auto store = connect(where);
  return make_gloo(make_gloo_device(where, store), store, axis.rank(), axis.size(), axis.timeout());
}

class NativeTest : public RankTest {};

TEST_P(NativeTest, EveryCallEqualsArithmetic) {
  on_ranks(GetParam(), [](const Group& axis) {
    const NativeCollectives native(bare_gloo(axis));
    const int n = axis.size(), rank = axis.rank();
    const auto of = [](int r) { return at::arange(6, at::kFloat) + 100.0 * r; };
    const auto all = [&] {
      std::vector<at::Tensor> parts;
      for (int r = 0; r < n; ++r) parts.push_back(of(r));
      return at::cat(parts);
    }();

    auto tensor = of(rank);
    native.all_reduce(tensor, ReduceOp::avg).wait();
    expect_close(tensor, all.view({n, 6}).mean(0));
    tensor = of(rank);
    native.all_reduce(tensor, ReduceOp::max).wait();
    expect_close(tensor, of(n - 1));
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      // Negative, zero, positive and infinite; rank 0's last is NaN.
      const auto row = at::tensor({-2.5, -0.5, 0.0, 1.5, 1e30}).to(dtype);
      auto values = row + rank;
      values[3].fill_(rank == 1 ? -INFINITY : INFINITY);
      if (rank == 0) values[4].fill_(-NAN);
      auto smallest = row.clone(), largest = row + (n - 1);
      smallest[3].fill_(-INFINITY), largest[3].fill_(INFINITY);
      smallest[4].fill_(NAN), largest[4].fill_(NAN);
      auto result = values.clone();
      native.all_reduce(result, ReduceOp::max).wait();
      EXPECT_TRUE(result.allclose(largest, 0, 0, /*equal_nan=*/true)) << result;
      native.all_reduce(values, ReduceOp::min).wait();
      EXPECT_TRUE(values.allclose(smallest, 0, 0, /*equal_nan=*/true)) << values;
    }
    tensor = of(rank);
    native.broadcast(tensor, n - 1).wait();
    expect_close(tensor, of(n - 1));

    auto whole = at::zeros({6 * n});
    native.all_gather(whole, of(rank)).wait();
    expect_close(whole, all);
    whole.zero_();
    native.all_gather_uneven(slices_of(whole, n), of(rank)).wait();
    expect_close(whole, all);

    auto part = at::zeros({6});
    native.reduce_scatter(part, all * (rank + 1), ReduceOp::avg).wait();
    expect_close(part, of(rank) * ((n + 1) / 2.0));
    native.reduce_scatter(part, rank == 0 ? all * NAN : all, ReduceOp::max).wait();
    EXPECT_TRUE(part.isnan().all().item<bool>()) << part;
    native.scatter(part, rank == 0 ? slices_of(all, n) : std::vector<at::Tensor>(), 0).wait();
    expect_close(part, of(rank));

    auto exchanged = at::zeros({n});
    native.all_to_all(exchanged, at::arange(n, at::kFloat) + 10.0 * rank).wait();
    expect_close(exchanged, at::arange(n, at::kFloat) * 10.0 + rank);
    // Rank s sends d rows to rank d.
    std::vector<int64_t> sent, received(static_cast<size_t>(n), rank);
    for (int r = 0; r < n; ++r) sent.push_back(r);
    auto rows = at::zeros({n * rank, 2});
    native.all_to_all(rows, at::full({n * (n - 1) / 2, 2}, rank, at::kFloat), received, sent)
        .wait();
    expect_close(rows, at::arange(n, at::kFloat).repeat_interleave(2 * rank).view({-1, 2}));
    axis.barrier();  // rank 0 serves the store
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, NativeTest, ::testing::Values(2, 3, 5));

}  // namespace
}  // namespace tessera::comm
