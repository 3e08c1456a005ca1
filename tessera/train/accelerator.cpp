#include "tessera/train/accelerator.h"

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "tessera/base/error.h"

namespace tessera {

Accelerator::Accelerator(const AcceleratorOptions& options)
    : core_(std::make_shared<AcceleratorCore>(
          options, config::accelerate::settings_from_environment([](const char* name) {
            return std::getenv(name);
          }),
          nullptr)) {}

Accelerator::Accelerator(const AcceleratorOptions& options, const mesh::DeviceMesh& mesh,
                         const config::accelerate::Settings& settings)
    : core_(std::make_shared<AcceleratorCore>(
          options, settings,
          std::shared_ptr<const mesh::DeviceMesh>(std::shared_ptr<void>(), &mesh))) {}

std::string Accelerator::mixed_precision() const {
  const auto compute = core_->config().precision.compute;
  return compute == FloatType::fp32 ? "no" : std::string(text_of(compute));
}

std::string Accelerator::distributed_type() const {
  return core_->settings().text("distributed_type");
}

void Accelerator::main_process_first(const std::function<void()>& work) const {
  if (is_main_process()) work();
  wait_for_everyone();
  if (!is_main_process()) work();
}

torch::Tensor Accelerator::gather_for_metrics(const torch::Tensor& tensor) const {
  auto all = gather(tensor);
  const auto pass = core_->pass();
  const auto remainder = pass && pass->at_end ? pass->remainder : 0;
  return remainder > 0 && remainder < all.size(0) ? all.slice(0, 0, remainder) : all;
}

torch::Tensor Accelerator::reduce(const torch::Tensor& tensor, const std::string& reduction) const {
  TORCH_CHECK_VALUE(reduction == "sum" || reduction == "mean", "reduce: expected sum or mean, got ",
                    reduction);
  const torch::NoGradGuard no_grad;
  auto result = tensor.detach().clone().contiguous();
  core_->axis().all_reduce(result, comm::ReduceOp::sum).wait();
  return reduction == "sum" ? result : result / num_processes();
}

torch::Tensor Accelerator::pad_across_processes(const torch::Tensor& tensor, int64_t dim,
                                                double pad_index, bool pad_first) const {
  TORCH_CHECK_VALUE(dim >= -tensor.dim() && dim < tensor.dim(), "pad_across_processes: dimension ",
                    dim, " of a tensor with ", tensor.dim());
  int64_t longest = 0;
  for (const auto& text : core_->axis().all_gather_bytes(std::to_string(tensor.size(dim)))) {
    longest = std::max<int64_t>(longest, std::stoll(text));
  }
  const auto missing = longest - tensor.size(dim);
  if (missing == 0) return tensor;
  auto sizes = tensor.sizes().vec();
  sizes[static_cast<size_t>(dim < 0 ? dim + tensor.dim() : dim)] = missing;
  const auto padding = at::full(sizes, pad_index, tensor.options());
  return pad_first ? at::cat({padding, tensor}, dim) : at::cat({tensor, padding}, dim);
}

bool Accelerator::check_trigger() {
  auto any = torch::full({1}, trigger_ ? 1.0 : 0.0);
  core_->axis().all_reduce(any, comm::ReduceOp::sum).wait();
  trigger_ = false;
  return any.item<double>() > 0;
}

void Accelerator::init_trackers(const std::filesystem::path& run_dir,
                                const report::HyperParameters& config) {
  if (!is_main_process()) return;
  for (const auto& name : core_->options().log_with) {
    trackers_.push_back(report::make_sink(name, {.run_dir = run_dir}));
    if (!config.empty()) trackers_.back()->hyper_parameters(config);
  }
}

void Accelerator::log(const std::map<std::string, double>& values, int64_t step) {
  std::vector<report::Scalar> scalars;
  for (const auto& [tag, value] : values) scalars.push_back({tag, value});
  for (auto& tracker : trackers_) tracker->scalars(step, scalars);
}

void Accelerator::end_training() {
  for (auto& tracker : trackers_) tracker->finish(/*success=*/true);
  trackers_.clear();
  wait_for_everyone();
}

int64_t find_executable_batch_size(const std::function<void(int64_t)>& function,
                                   int64_t starting_batch_size) {
  for (auto size = starting_batch_size; size > 0; size = size * 9 / 10) {
    try {
      function(size);
      return size;
    } catch (const c10::OutOfMemoryError&) {
    } catch (const std::bad_alloc&) {
    } catch (const c10::Error& error) {  // LibTorch's allocator of the CPU
      const std::string_view text = error.what();
      const auto says = [&](const char* words) {
        return text.find(words) != std::string_view::npos;
      };
      if (!says("can't allocate memory") && !says("not enough memory")) throw;
    }
  }
  TORCH_CHECK_VALUE(false, "find_executable_batch_size: memory does not suffice for one row");
}

void set_seed(uint64_t seed, bool device_specific) {
  const auto environment = launch::rank_environment();
  const auto rank = environment && device_specific ? environment->rank : 0;
  torch::manual_seed(seed + static_cast<uint64_t>(rank));
}

}  // namespace tessera
