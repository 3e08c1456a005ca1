#include "tessera/comm/group.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "tests/support/ranks.h"

namespace tessera::comm {
namespace {

using Body = std::function<void(const Group&)>;

/// Runs `body` through shared memory, through messages on sockets, and (`native_too`) through
/// Gloo's own all-reduce.
void for_each_transport(int num_ranks, const Body& body, bool native_too = false) {
  on_mesh({.shape = {.dp_replicate = num_ranks}}, [&](const mesh::DeviceMesh& mesh) {
    EXPECT_EQ(mesh.axis("dp_replicate").shares_memory(), num_ranks > 1);
    body(mesh.axis("dp_replicate"));
    for (const auto algorithm : {Algorithm::exchange, Algorithm::native}) {
      if (algorithm == Algorithm::native && !native_too) continue;
      const auto name = std::to_string(static_cast<int>(algorithm));
      SCOPED_TRACE("algorithm " + name);
      const auto sockets =
          mesh.with_transport(name, {.shared_memory = false, .all_reduce = algorithm});
      EXPECT_FALSE(sockets.axis("dp_replicate").shares_memory());
      body(sockets.axis("dp_replicate"));
    }
  });
}

/// Values that differ on every rank, small enough that fp16 sums stay finite; whole numbers for
/// integers.
at::Tensor values_of(int rank, int64_t count, at::ScalarType dtype) {
  const auto ramp = at::arange(count, at::kDouble);
  const auto values = at::sin(ramp * 0.37 + rank) * 8;
  return at::isIntegralType(dtype, false) ? (values * 100).to(dtype) : values.to(dtype);
}

/// The arithmetic of a reduction: fp64 sums of what the ranks hold, rounded once.
at::Tensor expected_of(ReduceOp op, int num_ranks, int64_t count, at::ScalarType dtype) {
  std::vector<at::Tensor> all;
  for (int r = 0; r < num_ranks; ++r) all.push_back(values_of(r, count, dtype).to(at::kDouble));
  const auto stacked = at::stack(all);
  switch (op) {
    case ReduceOp::sum:
      return stacked.sum(0).to(dtype);
    case ReduceOp::avg:
      return stacked.mean(0).to(dtype);
    case ReduceOp::max:
      return stacked.amax(0).to(dtype);
    case ReduceOp::min:
      return stacked.amin(0).to(dtype);
  }
  return {};
}

/// Sums of up to five values within 8: fp32 accumulation errs by less than one rounding of the
/// result's type.
Tolerance tolerance_of(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return {1e-5, 1.0 / 256};
  if (dtype == at::kHalf) return {1e-5, 1.0 / 2048};
  if (dtype == at::kFloat) return {1e-5, 1e-6};
  return {1e-12, 1e-12};
}

constexpr int64_t kCounts[] = {0, 1, 7, 64, 1000, 300'007};
constexpr int64_t kFewCounts[] = {0, 7, 300'007};

class GroupTest : public RankTest {};

TEST_P(GroupTest, AllReduceEqualsArithmetic) {
  const Body body = [](const Group& axis) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong}) {
      for (const auto op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min}) {
        if (op == ReduceOp::avg && dtype == at::kLong) continue;
        for (const int64_t count : kCounts) {
          auto tensor = values_of(axis.rank(), count, dtype);
          axis.all_reduce(tensor, op).wait();
          SCOPED_TRACE(fmt::format("{} op {} count {}", c10::toString(dtype), int(op), count));
          expect_close(tensor, expected_of(op, axis.size(), count, dtype), tolerance_of(dtype));
        }
      }
    }
  };
  for_each_transport(GetParam(), body);
}

TEST_P(GroupTest, MaximumAndMinimumKeepANaN) {
  const Body body = [](const Group& axis) {
    const int n = axis.size();
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      for (const auto op : {ReduceOp::max, ReduceOp::min}) {
        for (int with_nan = 0; with_nan < n; ++with_nan) {
          SCOPED_TRACE(
              fmt::format("{} {} NaN of rank {}", c10::toString(dtype), name_of(op), with_nan));
          auto tensor = at::full({7 * n}, axis.rank(), dtype);
          if (axis.rank() == with_nan) tensor[2].fill_(NAN), tensor[7 * n - 1].fill_(-NAN);
          auto expected = at::full({7 * n}, op == ReduceOp::max ? n - 1 : 0, dtype);
          expected[2].fill_(NAN), expected[7 * n - 1].fill_(NAN);
          auto part = at::empty({7}, dtype);
          axis.reduce_scatter(part, tensor, op).wait();
          EXPECT_TRUE(part.allclose(expected.narrow(0, axis.rank() * 7, 7), 0, 0, true));
          axis.all_reduce(tensor, op).wait();
          EXPECT_TRUE(tensor.allclose(expected, 0, 0, /*equal_nan=*/true));
        }
      }
    }
  };
  for_each_transport(GetParam(), body);
  if (GetParam() == 1) return;
  on_mesh({.shape = {.dp_replicate = GetParam()},
           .transport = {.shared_memory = false, .all_reduce = Algorithm::native}},
          [](const mesh::DeviceMesh& mesh) {
            const auto& axis = mesh.axis("dp_replicate");
            for (int with_nan = 0; with_nan < axis.size(); ++with_nan) {
              for (const auto op : {ReduceOp::max, ReduceOp::min}) {
                auto tensor = at::full({3}, axis.rank() == with_nan ? NAN : axis.rank());
                axis.all_reduce(tensor, op).wait();
                EXPECT_TRUE(tensor.isnan().all().item<bool>()) << name_of(op) << " " << with_nan;
              }
            }
          });
}

TEST_P(GroupTest, GloosOwnAllReduceEqualsArithmetic) {
  const Body body = [](const Group& axis) {
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      for (const int64_t count : kCounts) {
        auto tensor = values_of(axis.rank(), count, dtype);
        axis.all_reduce(tensor, ReduceOp::avg).wait();
        expect_close(tensor, expected_of(ReduceOp::avg, axis.size(), count, dtype),
                     tolerance_of(dtype));
      }
    }
  };
  for_each_transport(GetParam(), body, /*native_too=*/true);
}

TEST_P(GroupTest, HalfPrecisionSumsAddUpInFp32) {
  // 256 + 1 + 1 + .. is 256 in bf16 however often 1 is added; in fp32 every 1 counts.
  for_each_transport(GetParam(), [](const Group& axis) {
    auto tensor = at::full({5}, axis.rank() == 0 ? 256.0 : 1.0, at::kBFloat16);
    const auto expected = at::full({5}, 255.0 + axis.size(), at::kBFloat16);
    axis.all_reduce(tensor).wait();
    expect_close(tensor, expected, {0, 0});

    auto parts = at::full({5 * axis.size()}, axis.rank() == 0 ? 256.0 : 1.0, at::kBFloat16);
    auto mine = at::zeros({5}, at::kBFloat16);
    axis.reduce_scatter(mine, parts).wait();
    expect_close(mine, expected, {0, 0});
  });
}

TEST_P(GroupTest, AllReduceGivesTheSameBitsEverywhereAndEveryTime) {
  for_each_transport(GetParam(), [](const Group& axis) {
    at::Tensor first;
    for (int run = 0; run < 5; ++run) {
      auto tensor = values_of(axis.rank(), 200'003, at::kFloat);
      axis.all_reduce(tensor, ReduceOp::avg).wait();
      if (run == 0) first = tensor;
      EXPECT_TRUE(tensor.equal(first)) << "run " << run;
    }
    auto of_root = first.clone();
    axis.broadcast(of_root, 0).wait();
    EXPECT_TRUE(first.equal(of_root)) << "rank " << axis.rank();
  });
}

TEST_P(GroupTest, BroadcastFromEveryRoot) {
  for_each_transport(GetParam(), [](const Group& axis) {
    for (int root = 0; root < axis.size(); ++root) {
      auto tensor = values_of(axis.rank(), 300'007, at::kFloat).view({-1, 1});
      axis.broadcast(tensor, root).wait();
      expect_close(tensor.view({-1}), values_of(root, 300'007, at::kFloat), {0, 0});
    }
  });
}

TEST_P(GroupTest, AllGatherWritesIntoTheFlatOutput) {
  for_each_transport(GetParam(), [](const Group& axis) {
    for (const int64_t count : kCounts) {
      auto output = at::full({axis.size() * count}, -1.0);
      const auto expected = output.clone();
      for (int r = 0; r < axis.size(); ++r) {
        expected.narrow(0, r * count, count).copy_(values_of(r, count, at::kFloat));
      }
      axis.all_gather(output, values_of(axis.rank(), count, at::kFloat)).wait();
      expect_close(output, expected, {0, 0});

      // In place: this rank's part of the output is the input.
      auto in_place = at::full({axis.size() * count}, -1.0);
      auto mine = in_place.narrow(0, axis.rank() * count, count);
      mine.copy_(values_of(axis.rank(), count, at::kFloat));
      axis.all_gather(in_place, mine).wait();
      expect_close(in_place, expected, {0, 0});
    }
  });
}

TEST_P(GroupTest, AllGatherUneven) {
  for_each_transport(GetParam(), [](const Group& axis) {
    std::vector<at::Tensor> outputs;
    const auto count_of = [](int r) { return r == 1 ? 0 : 70'001 * r + 3; };
    for (int r = 0; r < axis.size(); ++r) outputs.push_back(at::full({count_of(r)}, -1.0));
    axis.all_gather_uneven(outputs, values_of(axis.rank(), count_of(axis.rank()), at::kFloat))
        .wait();
    for (int r = 0; r < axis.size(); ++r) {
      expect_close(outputs[r], values_of(r, count_of(r), at::kFloat), {0, 0});
    }
  });
}

TEST_P(GroupTest, ReduceScatterLeavesThisRanksPart) {
  for_each_transport(GetParam(), [](const Group& axis) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
      for (const int64_t count : kCounts) {
        const auto op = dtype == at::kLong ? ReduceOp::sum : ReduceOp::avg;
        const auto input = values_of(axis.rank(), axis.size() * count, dtype);
        const auto expected = expected_of(op, axis.size(), axis.size() * count, dtype)
                                  .narrow(0, axis.rank() * count, count);
        auto output = at::zeros({count}, dtype);
        axis.reduce_scatter(output, input, op).wait();
        expect_close(output, expected, tolerance_of(dtype));

        auto in_place = input.narrow(0, axis.rank() * count, count);
        axis.reduce_scatter(in_place, input, op).wait();
        expect_close(in_place, expected, tolerance_of(dtype));
      }
    }
  });
}

TEST_P(GroupTest, ScatterGivesEveryRankItsPartOfTheRoots) {
  for_each_transport(GetParam(), [](const Group& axis) {
    for (int root = 0; root < axis.size(); ++root) {
      for (const int64_t count : kFewCounts) {
        const auto whole = values_of(root, axis.size() * count, at::kFloat);
        const auto expected = whole.narrow(0, axis.rank() * count, count);
        auto output = at::zeros({count});
        axis.scatter(output, axis.rank() == root ? whole : at::Tensor(), root).wait();
        expect_close(output, expected, {0, 0});
        if (axis.rank() == root) {  // in place: all of the root's memory stays as it was
          auto in_place = whole.clone();
          axis.scatter(in_place.narrow(0, root * count, count), in_place, root).wait();
          expect_close(in_place, whole, {0, 0});
        } else {
          axis.scatter(output.zero_(), at::Tensor(), root).wait();
          expect_close(output, expected, {0, 0});
        }
      }
    }
    const int64_t calls = axis.size() == 1 ? 0 : 2 * axis.size() * std::ssize(kFewCounts);
    EXPECT_EQ(axis.counters().scatter.calls, calls);
  });
}

/// Pages of which some can be made read-only: whoever writes there dies.
class GuardedFloats {
 public:
  static constexpr int64_t kPage = 4096 / sizeof(float);

  explicit GuardedFloats(int64_t pages)
      : bytes_(static_cast<size_t>(pages) * 4096),
        start_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    TORCH_CHECK(start_ != MAP_FAILED);
  }
  ~GuardedFloats() { munmap(start_, bytes_); }
  GuardedFloats(const GuardedFloats&) = delete;
  GuardedFloats& operator=(const GuardedFloats&) = delete;

  at::Tensor tensor() const {
    return at::from_blob(start_, {static_cast<int64_t>(bytes_ / sizeof(float))}, at::kFloat);
  }
  static void read_only(const at::Tensor& pages) {
    if (pages.numel() == 0) return;
    TORCH_CHECK(mprotect(pages.data_ptr(), pages.nbytes(), PROT_READ) == 0);
  }

 private:
  size_t bytes_;
  void* start_;
};

TEST_P(GroupTest, AllGatherInPlaceNeverWritesToTheInput) {
  for_each_transport(GetParam(), [](const Group& axis) {
    constexpr int64_t kPages = 150;  // more than a slot of shared memory
    const int64_t count = kPages * GuardedFloats::kPage;
    const GuardedFloats floats(axis.size() * kPages);
    const auto output = floats.tensor();
    const auto mine = output.narrow(0, axis.rank() * count, count);
    mine.copy_(values_of(axis.rank(), count, at::kFloat));
    GuardedFloats::read_only(mine);
    axis.all_gather(output, mine).wait();
    for (int r = 0; r < axis.size(); ++r) {
      expect_close(output.narrow(0, r * count, count), values_of(r, count, at::kFloat), {0, 0});
    }
  });
}

TEST_P(GroupTest, ReduceScatterInPlaceWritesToThisRanksPartAlone) {
  for_each_transport(GetParam(), [](const Group& axis) {
    constexpr int64_t kPages = 150;
    const int64_t count = kPages * GuardedFloats::kPage, n = axis.size();
    const GuardedFloats floats(n * kPages);
    const auto input = floats.tensor();
    input.copy_(values_of(axis.rank(), n * count, at::kFloat));
    GuardedFloats::read_only(input.narrow(0, 0, axis.rank() * count));
    GuardedFloats::read_only(
        input.narrow(0, (axis.rank() + 1) * count, (n - axis.rank() - 1) * count));
    const auto mine = input.narrow(0, axis.rank() * count, count);
    axis.reduce_scatter(mine, input).wait();
    expect_close(mine,
                 expected_of(ReduceOp::sum, axis.size(), n * count, at::kFloat)
                     .narrow(0, axis.rank() * count, count),
                 tolerance_of(at::kFloat));
  });
}

TEST_P(GroupTest, AllToAll) {
  for_each_transport(GetParam(), [](const Group& axis) {
    for (const int64_t count : kCounts) {
      const int n = axis.size();
      auto output = at::zeros({n * count});
      axis.all_to_all_single(output, values_of(axis.rank(), n * count, at::kFloat)).wait();
      for (int r = 0; r < n; ++r) {
        expect_close(output.narrow(0, r * count, count),
                     values_of(r, n * count, at::kFloat).narrow(0, axis.rank() * count, count),
                     {0, 0});
      }
    }
  });
}

TEST_P(GroupTest, AllToAllOfUnevenRows) {
  // Rows that rank s sends to rank d: some of everyone, none to rank 1, none at all, from one rank to
  // another alone, and more than a slot of shared memory holds.
  const std::function<int64_t(int s, int d)> patterns[] = {
      [](int s, int d) { return (s * 3 + d * 5 + 1) % 7; },
      [](int s, int d) { return d == 1 ? 0 : s + 1; }, [](int, int) { return 0; },
      [](int s, int d) { return s == 1 && d == 0 ? 5 : 0; },
      [](int s, int d) { return s == 0 ? 40'001 * (d + 1) : 2 * d; }};
  for_each_transport(GetParam(), [&](const Group& axis) {
    const int n = axis.size(), rank = axis.rank();
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt,
                             at::kByte, at::kBool}) {
      for (const auto& rows_of : patterns) {
        std::vector<int64_t> rows;
        for (int i = 0; i < n * n; ++i) rows.push_back(rows_of(i / n, i % n));
        const auto sent_to = [&](int s, int d) {
          return at::arange(rows_of(s, d) * 3, at::kDouble).add(10 * s + d).remainder(120);
        };
        std::vector<at::Tensor> sent, expected;
        for (int r = 0; r < n; ++r) {
          sent.push_back(sent_to(rank, r));
          expected.push_back(sent_to(r, rank));
        }
        const auto input = at::cat(sent).to(dtype).view({-1, 3});
        const auto result = at::cat(expected).to(dtype).view({-1, 3});
        const auto output = at::zeros_like(result);
        const auto before = axis.counters().all_to_all;
        axis.all_to_all_uneven(output, input, rows).wait();
        EXPECT_TRUE(output.equal(result)) << c10::toString(dtype) << " on rank " << rank;
        const auto mean = std::reduce(rows.begin(), rows.end()) * 3 * input.element_size() / n;
        EXPECT_EQ(axis.counters().all_to_all.bytes - before.bytes, n == 1 ? 0 : mean);
        EXPECT_EQ(axis.counters().all_to_all.calls - before.calls, n == 1 ? 0 : 1);
      }
    }
  });
}

TEST_P(GroupTest, BytesOfAnyLength) {
  for_each_transport(GetParam(), [](const Group& axis) {
    const auto text_of = [](int r) { return std::string(static_cast<size_t>(r) * 1000, 'a' + r); };
    const auto all = axis.all_gather_bytes(text_of(axis.rank()));
    ASSERT_EQ(static_cast<int>(all.size()), axis.size());
    for (int r = 0; r < axis.size(); ++r) EXPECT_EQ(all[r], text_of(r));
  });
}

TEST_P(GroupTest, ManyOperationsInFlight) {
  for_each_transport(GetParam(), [](const Group& axis) {
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (int i = 0; i < 20; ++i) {
      tensors.push_back(at::full({10'000 * (i % 3) + 1}, static_cast<double>(axis.rank() + i)));
      works.push_back(axis.all_reduce(tensors.back()));
    }
    const int n = axis.size();
    for (int i = 19; i >= 0; --i) {
      works[i].wait();
      EXPECT_TRUE(works[i].done());
      EXPECT_EQ(tensors[i][0].item<float>(), n * i + n * (n - 1) / 2);
    }
    // A Work that nobody waits for is waited for where it ends.
    auto tensor = at::ones({100'000});
    { const auto dropped = axis.all_reduce(tensor); }
    EXPECT_EQ(tensor[99'999].item<float>(), n);
  });
}

TEST_P(GroupTest, CountsCallsBytesAndWaiting) {
  for_each_transport(GetParam(), [](const Group& axis) {
    CollectiveCounter counter(axis);
    const auto before = axis.counters();
    auto tensor = at::ones({1000});
    axis.all_reduce(tensor).wait();
    axis.all_reduce(tensor).wait();
    auto output = at::empty({axis.size() * 10});
    axis.all_gather(output, at::ones({10})).wait();
    axis.barrier();
    const int once = axis.size() == 1 ? 0 : 1;
    EXPECT_EQ(counter.counts().all_reduce, 2 * once);
    EXPECT_EQ(counter.counts().all_gather, once);
    EXPECT_EQ(counter.counts().barrier, once);
    EXPECT_EQ(counter.counts().reduce_scatter, 0);
    const Group copy = axis;  // NOLINT(performance-unnecessary-copy-initialization): the same group
    EXPECT_EQ(copy.counters().all_reduce.bytes - before.all_reduce.bytes, 8000 * once);
    EXPECT_EQ(copy.counters().all_gather.bytes - before.all_gather.bytes, 40 * axis.size() * once);
    if (axis.size() > 1) {
      EXPECT_GT(copy.counters().total().wait_seconds, before.total().wait_seconds);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, GroupTest, ::testing::Values(1, 2, 3, 5));

TEST_P(GroupTest, KnowsTheMemoryItUses) {
  for_each_transport(GetParam(), [](const Group& axis) {
    const int64_t before = axis.buffer_bytes();
    auto whole = at::ones({axis.size() * 1000});
    axis.reduce_scatter(whole.narrow(0, 0, 1000), whole).wait();
    const int64_t slots = axis.size() * 2 * (int64_t{256} << 10);
    const int64_t expected = axis.size() == 1       ? 0
                             : axis.shares_memory() ? slots
                                                    : 4000 * axis.size();
    EXPECT_EQ(axis.buffer_bytes() - before, expected);
  });
}

TEST(Group, MayBeMadeAndDroppedUnused) {
  on_mesh({.shape = {.tp = 3}}, [](const mesh::DeviceMesh& mesh) {
    for (int i = 0; i < 10; ++i) {
      const auto other = mesh.with_transport(std::to_string(i), {.shared_memory = false});
      EXPECT_EQ(other.axis("tp").size(), 3);
    }
  });
}

TEST(Group, AvgOfIntegersIsRefused) {
  EXPECT_THROW(static_cast<void>(Group().all_reduce(at::ones({2}, at::kLong), ReduceOp::avg)),
               c10::ValueError);
}

}  // namespace
}  // namespace tessera::comm
