#include "tessera/comm/run_program.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "tessera/base/error.h"

namespace tessera {
namespace {

/// Ends with what run_program() gives for what `body` throws.
[[noreturn]] void ended(const std::function<void()>& body) {
  std::exit(run_program([&] {
    body();
    return 0;
  }));
}

TEST(RunProgram, EndsWithOneLine) {
  const auto with = [](int code) { return ::testing::ExitedWithCode(code); };
  EXPECT_EXIT(ended([] {}), with(0), "^$");
  EXPECT_EXIT(ended([] { user_error("a.yaml: expected b"); }), with(kUserErrorExit),
              "^tessera: a.yaml: expected b\n$");
  EXPECT_EXIT(ended([] { TORCH_CHECK_VALUE(false, "expected c"); }), with(kUserErrorExit),
              "^tessera: expected c\n$");
  EXPECT_EXIT(ended([] { TORCH_CHECK(false, "d"); }), with(kFailureExit), "^tessera: d\n$");
  // As LibTorch words them.
  const auto lost = [] {
    throw c10::AcceleratorError({"synchronise", __FILE__, __LINE__}, 700,
                                "CUDA error: an illegal memory access was encountered\nSearch for "
                                "`cudaErrorIllegalAddress' in\n"
                                "CUDA kernel errors might be asynchronously reported\n");
  };
  EXPECT_EXIT(ended(lost), with(kFailureExit),
              "^tessera: CUDA error: an illegal memory access was encountered; the GPU [^\n]*\n$");
}

}  // namespace
}  // namespace tessera
