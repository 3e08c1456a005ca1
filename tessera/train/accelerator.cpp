#include "tessera/train/accelerator.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/tensors.h"

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

void Accelerator::main_process_first(const std::function<void()>& work) const {
  if (is_main_process()) work();
  wait_for_everyone();
  if (!is_main_process()) work();
}

void Accelerator::local_main_process_first(const std::function<void()>& work) const {
  if (is_local_main_process()) work();
  wait_for_everyone();
  if (!is_local_main_process()) work();
}

torch::Tensor Accelerator::cut(const torch::Tensor& all) const {
  const auto pass = core_->pass();
  const auto remainder = pass && pass->at_end && num_processes() > 1 ? pass->remainder : 0;
  return remainder > 0 && remainder < all.size(0) ? all.slice(0, 0, remainder) : all;
}

void Accelerator::save_weights(const torch::OrderedDict<std::string, torch::Tensor>& state,
                               const std::filesystem::path& folder, int64_t max_shard_bytes) const {
  if (is_main_process()) {
    std::filesystem::create_directories(folder);
    std::vector<std::map<std::string, torch::Tensor>> shards(1);
    int64_t used = 0, total = 0;
    for (const auto& item : state) {
      const auto num_bytes = static_cast<int64_t>(item.value().nbytes());
      if (used + num_bytes > max_shard_bytes && !shards.back().empty()) {
        shards.emplace_back();
        used = 0;
      }
      used += num_bytes, total += num_bytes;
      shards.back()[item.key()] = item.value();
    }
    nlohmann::json places;
    for (size_t i = 0; i < shards.size(); ++i) {
      const auto name = shards.size() == 1
                            ? "model.safetensors"
                            : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
      checkpoint::save_safetensors(folder / name, shards[i], {{"format", "pt"}});
      for (const auto& [tensor, value] : shards[i]) places[tensor] = name;
    }
    if (shards.size() > 1) {
      const nlohmann::json index{{"metadata", {{"total_size", total}}}, {"weight_map", places}};
      write_file(folder / "model.safetensors.index.json", index.dump(2) + "\n");
    }
  }
  wait_for_everyone();
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
  auto names = core_->options().log_with;
  if (std::ranges::count(names, "all") > 0) names = report::sink_names();
  for (const auto& name : names) {
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
