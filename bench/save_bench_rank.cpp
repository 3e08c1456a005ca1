#include "bench/save_bench_rank.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/saver.h"
#include "tessera/launch/rank_environment.h"

namespace tessera::bench {
namespace {

using checkpoint::HeldExtent;
using Clock = std::chrono::steady_clock;

constexpr int64_t kNumTensors = 48;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

mesh::DeviceMesh make_mesh() {
  const auto where = launch::rank_environment().value_or(launch::RankEnvironment{});
  return {{.dp_shard = where.world_size},
          {.rank = where.rank,
           .world_size = where.world_size,
           .master_addr = where.master_addr,
           .master_port = where.master_port,
           .listen_fd = where.listen_fd}};
}

/// This rank's slice of each of kNumTensors fp32 tensors, filled with numbers that no disk can
/// pack.
std::vector<HeldExtent> state(int64_t num_bytes, int rank, int size) {
  const int64_t elements = num_bytes / kNumTensors / 4;
  const int64_t begin = elements * rank / size, end = elements * (rank + 1) / size;
  std::vector<HeldExtent> parts;
  uint64_t random = static_cast<uint64_t>(rank) + 1;
  for (int64_t i = 0; i < kNumTensors; ++i) {
    const auto values = at::empty({end - begin}, torch::kFloat32);
    for (auto& word :
         std::span(values.mutable_data_ptr<float>(), static_cast<size_t>(end - begin))) {
      random = random * 6364136223846793005 + 1442695040888963407;
      word = static_cast<float>(random >> 40);
    }
    parts.push_back(
        checkpoint::held_extent(fmt::format("layer_{:02}.weight", i), {elements}, begin, values));
  }
  return parts;
}

double seconds_to_copy(const std::vector<HeldExtent>& parts) {
  int64_t bytes = 0;
  for (const auto& part : parts) bytes += part.extent.num_bytes();
  const PageBuffer buffer(bytes);
  buffer.populate();
  auto room = buffer.bytes();
  const auto start = Clock::now();
  for (const auto& part : parts) {
    std::memcpy(room.data(), part.values.const_data_ptr(), part.values.nbytes());
    room = room.subspan(part.values.nbytes());
  }
  return seconds_since(start);
}

checkpoint::Verify verify_named(const std::string& name) {
  if (name == "off") return checkpoint::Verify::off;
  return name == "sizes" ? checkpoint::Verify::sizes : checkpoint::Verify::full;
}

nlohmann::json save(const RankJob& job, const mesh::Axis& axis,
                    const std::vector<HeldExtent>& parts) {
  checkpoint::Saver saver(
      axis, parts,
      {.directory = job.folder, .async = job.async, .verify = verify_named(job.verify)});
  const double copy = seconds_to_copy(parts);
  axis.barrier();
  const auto start = Clock::now();
  saver.save({.step = 1});
  const double stall = seconds_since(start);
  saver.finish();
  axis.barrier();
  const double seconds = seconds_since(start);
  const auto reports = saver.take_reports();
  if (!reports[0].error.empty()) throw SystemError(reports[0].error);
  return {{"seconds", seconds}, {"stall_seconds", stall}, {"copy_seconds", copy}};
}

nlohmann::json load(const RankJob& job, const mesh::Axis& axis,
                    const std::vector<HeldExtent>& parts) {
  axis.barrier();
  const auto start = Clock::now();
  checkpoint::load_extents(checkpoint::Checkpoint(job.folder), parts);
  axis.barrier();
  return {{"seconds", seconds_since(start)}};
}

}  // namespace

nlohmann::json run_rank(const RankJob& job) {
  const auto mesh = make_mesh();
  const auto parts = state(job.num_bytes, mesh.rank(), mesh.size());
  return job.action == "save" ? save(job, mesh.world(), parts) : load(job, mesh.world(), parts);
}

}  // namespace tessera::bench
