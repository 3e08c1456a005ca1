#include "tessera/comm/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

using ::testing::HasSubstr;

std::string error_of(const DeviceQuestion& question) {
  try {
    choose_device(question);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Device, AutoTakesAGpuForEachRankOrNone) {
  const auto gpus_of = [](int ranks, int gpus) {
    return DeviceQuestion{.local_rank = ranks - 1,
                          .local_world_size = ranks,
                          .built_with_cuda = gpus > 0,
                          .num_gpus = gpus};
  };
  EXPECT_EQ(choose_device(gpus_of(2, 0)).device, c10::kCPU);
  EXPECT_EQ(choose_device(gpus_of(2, 0)).note, "");
  EXPECT_EQ(choose_device(gpus_of(4, 4)).device, c10::Device(c10::kCUDA, 3));
  EXPECT_EQ(choose_device(gpus_of(1, 8)).device, c10::Device(c10::kCUDA, 0));
  EXPECT_EQ(choose_device(gpus_of(2, 1)).device, c10::kCPU);
  EXPECT_THAT(choose_device(gpus_of(2, 1)).note,
              HasSubstr("2 ranks for 1 visible GPUs: all compute on the CPU"));
}

TEST(Device, GlooMeansTheCpu) {
  EXPECT_EQ(choose_device({.backend = BackendChoice::gloo, .built_with_cuda = true, .num_gpus = 8})
                .device,
            c10::kCPU);
}

TEST(Device, NcclIsRefusedWhereItCannotBe) {
  EXPECT_THAT(error_of({.backend = BackendChoice::nccl}), HasSubstr("this build has no CUDA"));
  EXPECT_THAT(error_of({.backend = BackendChoice::nccl, .built_with_cuda = true}),
              HasSubstr("no GPU is visible"));
  EXPECT_EQ(error_of({.backend = BackendChoice::nccl,
                      .local_rank = 2,
                      .local_world_size = 3,
                      .built_with_cuda = true,
                      .num_gpus = 2}),
            "num_ranks: expected at most 2 (one per visible GPU), got 3");
}

TEST(Device, ARankBoundToOneGpuTakesIt) {
  EXPECT_EQ(choose_device({.backend = BackendChoice::nccl,
                           .local_rank = 3,
                           .local_world_size = 4,
                           .built_with_cuda = true,
                           .num_gpus = 1})
                .device,
            c10::Device(c10::kCUDA, 0));
}

TEST(Device, ARankThatSlurmBindsTakesTheGpuThatItSees) {
  const auto binds = [](const std::string& name, const char* value) {
    return bound_by_slurm([&](const std::string& asked) {
      return asked == "SLURM_STEP_TASKS_PER_NODE" ? "4(x2)" : name == asked ? value : nullptr;
    });
  };
  EXPECT_TRUE(binds("SLURM_GPUS_PER_TASK", "1"));
  EXPECT_TRUE(binds("SLURM_GPUS_PER_TASK", "h100:1"));
  EXPECT_TRUE(binds("SLURM_NTASKS_PER_GPU", "1"));
  EXPECT_TRUE(binds("SLURM_GPU_BIND", "verbose,single:1"));
  EXPECT_FALSE(binds("SLURM_GPUS_PER_TASK", "2"));
  EXPECT_FALSE(binds("SLURM_GPU_BIND", "none"));
  EXPECT_FALSE(binds("SLURM_PROCID", "1"));
  EXPECT_FALSE(bound_by_slurm([](const std::string& asked) {  // our own ranks, below one task
    return asked == "SLURM_STEP_TASKS_PER_NODE" ? "1(x2)" : "1";
  }));
  DeviceQuestion question{
      .local_rank = 3, .local_world_size = 4, .built_with_cuda = true, .num_gpus = 1};
  EXPECT_EQ(choose_device(question).device, c10::kCPU);
  question.is_bound = true;
  EXPECT_EQ(choose_device(question).device, c10::Device(c10::kCUDA, 0));
}

}  // namespace
}  // namespace tessera::comm
