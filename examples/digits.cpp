// A convolutional net of your own, trained on drawn digits by any number of ranks:
//
//     build/release/bin/tessera launch -n 4 build/release/bin/digits           # DDP
//     build/release/bin/tessera launch -n 4 build/release/bin/digits --shard   # FSDP
//     build/release/bin/digits                                                 # one rank
//
// The net knows nothing of ranks. What does: the mesh, the lines from convert_sync_batchnorm to the
// optimizer, which rows of a batch are this rank's, and the two sums that are printed.
#include <ATen/ATen.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <string_view>

#include "drawn_digits.h"
#include "tessera/base/error.h"
#include "tessera/comm/run_program.h"
#include "tessera/data/batch.h"
#include "tessera/launch/rank_environment.h"
#include "tessera/nn/batch_norm.h"
#include "tessera/parallel/data/data_parallel.h"
#include "tessera/parallel/data/sync_batch_norm.h"

using torch::Tensor;

/// [B, I, Y, X] -> [B, O, Y/2, X/2]
struct StageImpl : tessera::nn::Hookable {
  StageImpl(int64_t inputs, int64_t outputs)
      : conv(torch::nn::Conv2dOptions(inputs, outputs, 3).padding(1).bias(false)), norm(outputs) {
    register_module("conv", conv);
    register_module("norm", norm);
  }
  Tensor forward(const Tensor& x) { return at::max_pool2d(at::relu(norm(conv(x))), 2); }

  torch::nn::Conv2d conv;
  tessera::nn::BatchNorm norm;
};
using Stage = tessera::nn::Hooked<StageImpl>;

/// [B, 1, 28, 28] -> [B, 10]
struct NetImpl : tessera::nn::Hookable {
  NetImpl() {
    register_module("first", first);
    register_module("second", second);
    register_module("classify", classify);
  }
  Tensor forward(const Tensor& images) { return classify(second(first(images)).flatten(1)); }

  Stage first{1, 8}, second{8, 16};
  torch::nn::Linear classify{16 * 7 * 7, 10};
};
using Net = tessera::nn::Hooked<NetImpl>;

constexpr int64_t kBatch = 64, kSteps = 150, kHeldOut = 1000;

/// This rank's rows of `size` digits from `begin` on.
drawn::Digits my_digits(const tessera::mesh::DeviceMesh& mesh, int64_t begin, int64_t size) {
  const auto rows = tessera::data::rows_of(mesh.rank(), mesh.size(), size);
  return drawn::draw_digits(/*seed=*/1, begin + rows.begin, begin + rows.end);
}

/// The share of right answers for digits that no step has seen.
double accuracy(Net& net, const tessera::mesh::DeviceMesh& mesh) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const auto digits = my_digits(mesh, kSteps * kBatch, kHeldOut);
  const auto right = net(digits.images).argmax(1).eq(digits.labels).sum();
  mesh.world().all_reduce(right).wait();
  return right.item<double>() / kHeldOut;
}

/// Returns what share of the new digits it got right.
double train(const tessera::mesh::DeviceMesh& mesh) {
  torch::manual_seed(0);  // the same weights on every rank
  Net net;
  tessera::convert_sync_batchnorm(*net, mesh);
  const tessera::parallel::DataParallelOptions options{.gradient_divide_factor = 1};
  auto parallel = mesh.shape().dp_shard > 1 ? tessera::fully_shard(*net, mesh, options)
                                            : tessera::replicate(*net, mesh, options);
  torch::optim::AdamW optimizer(parallel.parameters(), torch::optim::AdamWOptions(3e-3));
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto digits = my_digits(mesh, step * kBatch, kBatch);
    // The sum of all ranks' parts is the mean over the batch, however uneven they are.
    auto loss = at::cross_entropy_loss(net(digits.images), digits.labels, {}, at::Reduction::Sum) /
                static_cast<double>(kBatch);
    loss.backward();
    parallel.finish_backward();
    optimizer.step();
    parallel.finish_step();
    if ((step + 1) % 50 > 0) continue;
    mesh.world().all_reduce(loss.detach_()).wait();
    if (mesh.rank() == 0) fmt::print("step {}: loss {:.4f}\n", step + 1, loss.item<double>());
  }
  const double correct = accuracy(net, mesh);
  if (mesh.rank() == 0) fmt::print("{:.1f} % of {} new digits right\n", 100 * correct, kHeldOut);
  return correct;
}

int program(int argc, char** argv) {
  try {
    const auto ranks =
        tessera::launch::rank_environment().value_or(tessera::launch::RankEnvironment{});
    tessera::mesh::MeshShape shape;
    const bool shard = argc > 1 && std::string_view(argv[1]) == "--shard";
    (shard ? shape.dp_shard : shape.dp_replicate) = ranks.world_size;
    const tessera::mesh::DeviceMesh mesh(shape, {.rank = ranks.rank,
                                                 .world_size = ranks.world_size,
                                                 .master_addr = ranks.master_addr,
                                                 .master_port = ranks.master_port,
                                                 .listen_fd = ranks.listen_fd,
                                                 .served = ranks.agent_store});
    return train(mesh) < 0.95 ? tessera::kFailureExit : 0;
  } catch (const c10::Error& error) {
    fmt::print(stderr, "digits: {}\n", error.what_without_backtrace());
    return tessera::kFailureExit;
  } catch (const std::exception& error) {
    fmt::print(stderr, "digits: {}\n", error.what());
    return tessera::kFailureExit;
  }
}

int main(int argc, char** argv) {
  return tessera::run_program([&] { return program(argc, argv); });
}
