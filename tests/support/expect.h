// Assertions on tensors and collectives.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "tessera/comm/group.h"

namespace tessera {

/// |actual - expected| <= absolute + relative * |expected| for every element; negative tolerances
/// (the default) mean those of the dtype: 1e-5 / 1.3e-6 for fp32, 1e-7 for fp64, 1e-5 / 1.6e-2 for
/// bf16, 1e-5 / 1e-3 for fp16, exact for integers.
struct Tolerance {
  double absolute = -1;
  double relative = -1;
};

/// Adds a gtest failure that names the worst element. Shapes and dtypes must agree; devices may
/// differ.
void expect_close(const at::Tensor& actual, const at::Tensor& expected, Tolerance tolerance = {});

/// What `action` raises is a ValueError with `text`.
void expect_line(const std::function<void()>& action, const std::string& text);

/// Collectives that an axis started since the counter was made.
class CollectiveCounter {
 public:
  struct Counts {
    int64_t all_reduce, broadcast, all_gather, reduce_scatter, all_to_all, barrier;
  };

  explicit CollectiveCounter(const comm::Group& axis) : axis_(axis), start_(axis.counters()) {}
  Counts counts() const;

 private:
  comm::Group axis_;
  comm::Counters start_;
};

}  // namespace tessera
