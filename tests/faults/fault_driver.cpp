// A program that saves checkpoints, for those who make its calls fail (shim.cpp).
//
//   checkpoint_fault_driver FOLDER FIRST LAST async|sync
//       saves steps FIRST to LAST into FOLDER; as a rank of a job: this rank's half. Prints
//       "saved 3", "failed 3: why" or "refused: why". Exit code 1 if refused.
//   checkpoint_fault_driver
//       reads lines "FAULTS LOG" + the arguments above ("-": none), does that in a child each, and
//       prints "ended" and how the child ended, as waitpid has it. LibTorch is loaded only once.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/saver.h"
#include "tessera/checkpoint/tensors.h"
#include "tessera/launch/rank_environment.h"
#include "tests/faults/content.h"

namespace tessera::faults {
namespace {

struct Job {
  std::string folder;
  int64_t first = 0, last = 0;
  std::string mode;
};

void say(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);  // what was said counts, even if the next call kills
}

/// This rank's run of elements of every tensor; the last tensor stands on all ranks.
std::vector<checkpoint::HeldExtent> parts_of(int rank, int size) {
  std::vector<checkpoint::HeldExtent> parts;
  const auto all = tensors();
  for (const auto& [name, info] : all) {
    const bool whole = name == all.back().name;
    const int64_t run = info.num_elements() / size / 8 * 8;
    const int64_t begin = whole ? 0 : rank * run;
    const int64_t end = whole || rank == size - 1 ? info.num_elements() : begin + run;
    parts.push_back(checkpoint::held_extent(
        name, info.shape, begin,
        at::empty({end - begin}, at::TensorOptions(checkpoint::torch_dtype(info.dtype)))));
    if (!whole) continue;
    parts.back().replicas = size;
    parts.back().replica = rank;
  }
  return parts;
}

void set_values(const std::vector<checkpoint::HeldExtent>& parts, int64_t step) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& part = parts[i];
    fill(i, step, part.extent.begin * checkpoint::dtype_bytes(part.extent.info.dtype),
         {static_cast<std::byte*>(part.values.mutable_data_ptr()), part.values.nbytes()});
  }
}

void report(checkpoint::Saver& saver) {
  for (const auto& save : saver.take_reports()) {
    say(save.error.empty() ? fmt::format("saved {}", save.step)
                           : fmt::format("failed {}: {}", save.step, save.error));
  }
}

mesh::DeviceMesh make_mesh() {
  const auto where = launch::rank_environment();
  if (!where) return {};
  return {{.dp_replicate = where->world_size},
          {.rank = where->rank,
           .world_size = where->world_size,
           .master_addr = where->master_addr,
           .master_port = where->master_port,
           .timeout = std::chrono::seconds(30)}};
}

int run(const Job& job) {
  try {
    const auto mesh = make_mesh();
    const auto parts = parts_of(mesh.rank(), mesh.size());
    checkpoint::Saver saver(mesh.world(), parts,
                            {.directory = job.folder,
                             .async = job.mode == "async",
                             .verify = checkpoint::Verify::sizes,
                             .retention = {.keep_last = 2},
                             .assets = {"LICENSE"}});
    for (int64_t step = job.first; step <= job.last; ++step) {
      set_values(parts, step);
      saver.save({.step = step, .state = {{"tokens", step}}});
      report(saver);
    }
    saver.finish();
    report(saver);
    return 0;
  } catch (const std::exception& error) {
    say(fmt::format("refused: {}", error.what()));
    return 1;
  }
}

void set_variable(const char* name, const std::string& value) {
  if (value == "-") {
    ::unsetenv(name);
  } else {
    ::setenv(name, value.c_str(), /*overwrite=*/1);
  }
}

void serve() {
  at::set_num_threads(1);
  for (std::string line; std::getline(std::cin, line);) {
    Job job;
    std::string faults, log;
    std::istringstream(line) >> faults >> log >> job.folder >> job.first >> job.last >> job.mode;
    const pid_t child = ::fork();
    if (child < 0) system_error("fork");
    if (child == 0) {
      set_variable("TESSERA_FAULTS", faults);
      set_variable("TESSERA_FAULT_LOG", log);
      set_variable("TESSERA_FAULT_FOLDER", job.folder);
      const int code = run(job);
      std::fflush(stdout);
      ::_exit(code);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    say(fmt::format("ended {}", status));
  }
}

}  // namespace
}  // namespace tessera::faults

int main(int argc, char** argv) {
  if (argc == 1) {
    tessera::faults::serve();
    return 0;
  }
  if (argc != 5) return tessera::kUserErrorExit;
  return tessera::faults::run({argv[1], std::atoll(argv[2]), std::atoll(argv[3]), argv[4]});
}
