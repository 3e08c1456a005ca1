#include "tessera/base/machine.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include "tessera/base/file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// A folder in the place of /.
class MachineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    write(
        "proc/cpuinfo",
        "processor\t: 0\nmodel name\t: Xeon: 9 @ 2 GHz\nflags\t\t: fpu avx2 avx512f avx512_bf16x\n"
        "\nprocessor\t: 1\nmodel name\t: another\n");
    write("proc/meminfo",
          "MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:    12000000 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    write_file(root_ / path, text);
  }

  fs::path root_ = fs::path(::testing::TempDir()) / ("machine_test." + std::to_string(::getpid()));
};

TEST_F(MachineTest, CpuAndMemory) {
  const auto machine = this_machine(root_);
  EXPECT_EQ(machine.cpu, "Xeon: 9 @ 2 GHz");
  EXPECT_THAT(machine.isa, ElementsAre("avx2", "avx512f"));
  EXPECT_EQ(machine.memory_bytes, int64_t{16000000} * 1024);
  EXPECT_EQ(machine.available_bytes, int64_t{12000000} * 1024);
  EXPECT_GE(machine.num_cores, 1);
  EXPECT_THAT(machine.gpus, IsEmpty());
}

TEST_F(MachineTest, TheLeastLimitOfTheControlGroupsCounts) {
  write("proc/self/cgroup", "0::/job_7/step_0\n");
  write("sys/fs/cgroup/job_7/step_0/memory.max", "max\n");
  EXPECT_EQ(this_machine(root_).memory_bytes, int64_t{16000000} * 1024);
  write("sys/fs/cgroup/job_7/memory.max", "4096\n");
  EXPECT_EQ(this_machine(root_).memory_bytes, 4096);
  EXPECT_EQ(this_machine(root_).available_bytes, 4096);
  write("proc/self/cgroup", "5:cpu:/\n4:memory:/docker\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(this_machine(root_).memory_bytes, int64_t{16000000} * 1024);
  write("sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "8192\n");
  EXPECT_EQ(this_machine(root_).memory_bytes, 8192);
}

TEST_F(MachineTest, GpusAreThoseWithADevice) {
  write("proc/driver/nvidia/gpus/0000:1b:00.0/information",
        "Model: \t\t NVIDIA H200\nIRQ:   \t\t 101\nDevice Minor: \t 1\n");
  write("proc/driver/nvidia/gpus/0000:2c:00.0/information",
        "Model: \t\t NVIDIA A100\nDevice Minor: \t 0\n");
  EXPECT_THAT(this_machine(root_).gpus, IsEmpty());
  for (const char* device : {"nvidia1", "nvidia7", "nvidiactl", "nvidia", "nvidia-uvm"}) {
    write(std::string("dev/") + device, "");
  }
  EXPECT_THAT(this_machine(root_).gpus, ElementsAre("NVIDIA H200", "NVIDIA GPU"));
}

TEST_F(MachineTest, NothingKnownIsNoError) {
  const auto machine = this_machine(root_ / "absent");
  EXPECT_EQ(machine.cpu, "");
  EXPECT_EQ(machine.memory_bytes, 0);
}

}  // namespace
}  // namespace tessera
