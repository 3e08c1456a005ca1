// The Accelerator: a training loop written for one device runs as DDP, ZeRO 1 to 3, FSDP or HSDP,
// as the launcher's configuration says. Names and behaviour are those of Hugging Face Accelerate.
//
//     tessera::Accelerator accelerator;
//     auto [loader, model, optimizer, scheduler] =
//         accelerator.prepare(my_loader, my_model, my_optimizer, my_scheduler);
//     for (auto& batch : loader) {
//       auto loss = at::cross_entropy_loss(model(batch.data), batch.target);
//       accelerator.backward(loss);
//       optimizer.step();
//       scheduler.step();
//       optimizer.zero_grad();
//     }
//
// docs/accelerator.md tells what differs.
#pragma once

#include <fmt/format.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>
#include <torch/serialize.h>

#include <concepts>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/report/sink.h"
#include "tessera/train/accelerator_core.h"
#include "tessera/train/prepared.h"
#include "tessera/train/prepared_loader.h"
#include "tessera/train/profile.h"

namespace tessera {

class Accelerator {
 public:
  /// Joins the run that a launcher started (`tessera launch`, torchrun, mpirun, srun), as its
  /// environment says (ACCELERATE_*, FSDP_*, ..: `tessera launch --config_file`); alone: one rank.
  /// UserError: settings that are refused here, see `tessera config show`. Collective.
  explicit Accelerator(const AcceleratorOptions& options = {});

  /// The same over a mesh that exists already (and lives as long), with settings of the program's.
  Accelerator(const AcceleratorOptions& options, const mesh::DeviceMesh& mesh,
              const config::accelerate::Settings& settings);

  // ---- who and where ----

  int num_processes() const { return core_->axis().size(); }
  int process_index() const { return core_->axis().rank(); }
  int local_process_index() const { return core_->environment().local_rank; }
  bool is_main_process() const { return process_index() == 0; }
  bool is_local_main_process() const { return local_process_index() == 0; }
  bool is_last_process() const { return process_index() == num_processes() - 1; }
  torch::Device device() const { return core_->mesh().device(); }
  std::string mixed_precision() const;  ///< "no", "fp16", "bf16"
  /// "NO", "MULTI_CPU", "MULTI_GPU", "DEEPSPEED" (ZeRO-1, ZeRO-2) or "FSDP".
  std::string distributed_type() const { return core_->distributed_type(); }
  const config::RunConfig& config() const { return core_->config(); }  ///< as translated
  const mesh::DeviceMesh& mesh() const { return core_->mesh(); }

  /// Returns when every process has come here.
  void wait_for_everyone() const { core_->axis().barrier(); }

  /// Prints on the main process alone.
  template <typename... Args>
  void print(fmt::format_string<Args...> format, Args&&... args) const {
    if (is_main_process()) fmt::print("{}\n", fmt::format(format, std::forward<Args>(args)...));
  }

  /// Runs `work` on the main process first (local: of each machine), then on all others.
  void main_process_first(const std::function<void()>& work) const;
  void local_main_process_first(const std::function<void()>& work) const;

  /// `function` that does nothing on other processes. An index counts where there are several.
  auto on_main_process(auto function) const {
    return only_if(is_main_process(), std::move(function));
  }
  auto on_local_main_process(auto function) const {
    return only_if(is_local_main_process(), std::move(function));
  }
  auto on_last_process(auto function) const {
    return only_if(is_last_process(), std::move(function));
  }

  auto on_process(auto function, int process_index) const {
    return only_if(num_processes() == 1 || this->process_index() == process_index,
                   std::move(function));
  }
  auto on_local_process(auto function, int local_process_index) const {
    return only_if(num_processes() == 1 || this->local_process_index() == local_process_index,
                   std::move(function));
  }

  // ---- preparing ----

  /// Makes data loaders, models, optimizers and schedulers, in any order and number, ready for this
  /// run; returns what takes their places, in the order given (one alone: not as a tuple). They are
  /// held by reference and must live as long; temporaries are kept until free_memory().
  /// - models: holders of nn::Hooked, TORCH_MODULE or shared_ptr. On this run's device; their
  ///   parameters become views. Units: the classes of fsdp_transformer_layer_cls_to_wrap, a minimal
  ///   size, or the whole model; a model that is not nn::Hookable is one unit.
  /// - optimizers: Adam, AdamW, SGD, RMSprop or Adagrad over parameters of models prepared in the
  ///   same call or before, in any groups; under DDP LBFGS and any other, too. Several may share a
  ///   model. What none has is not updated.
  /// - loaders: torch::data::make_data_loader's; batches see batch_rows.h.
  /// - schedulers: lr_scheduler::LRScheduler, LibTorch's, or whatever has step() or step(metric). Saved:
  ///   what state_dict() gives, or without it the steps, which load_state() takes again.
  /// ValueError for what cannot be.
  template <typename... Objects>
  auto prepare(Objects&&... objects) {
    return prepare_kept(kept(std::forward<Objects>(objects))...);
  }

  /// Forgets what was prepared, so that other objects can be.
  void free_memory() { core_->free_memory(), kept_.clear(); }

  /// The loader without its first `num_batches` batches of this rank, once: to go on inside an
  /// epoch.
  template <typename Loader>
  PreparedLoader<Loader> skip_first_batches(PreparedLoader<Loader> loader, int64_t num_batches) {
    return loader.skip(num_batches), loader;
  }

  /// The module inside a prepared model.
  template <typename Impl>
  std::shared_ptr<Impl> unwrap_model(const PreparedModel<Impl>& model) const {
    return model.module();
  }

  // ---- a step ----

  /// Backward of `loss` over gradient_accumulation_steps; gradients are averaged over the processes
  /// when sync_gradients().
  void backward(const torch::Tensor& loss) { core_->backward(loss); }

  /// At the beginning of a micro-batch: does its step() update? Once in
  /// gradient_accumulation_steps calls, and at the end of a loader. In between optimizers and
  /// schedulers do nothing.
  ///     auto scope = accelerator.accumulate(model);
  [[nodiscard]] AccumulationScope accumulate(const auto&...) { return AccumulationScope(*core_); }
  bool sync_gradients() const { return core_->sync_gradients(); }
  int64_t gradient_accumulation_steps() const { return core_->accumulation_steps(); }
  void set_gradient_accumulation_steps(int64_t steps) { core_->set_accumulation_steps(steps); }

  /// While it lives, backward only accumulates.
  [[nodiscard]] NoSyncScope no_sync(const auto&...) { return NoSyncScope(*core_); }

  /// While it lives, processes may have other numbers of batches (even_batches = false): gradients
  /// are sums over those that have one, divided by all. Under DDP.
  [[nodiscard]] JoinScope join_uneven_inputs(const auto&...) { return JoinScope(*core_); }

  /// Scales the gradients of these parameters of prepared models (`model->parameters()`) down to
  /// `max_norm`; gives their norm before. Between updates: this process's own gradients under DDP;
  /// under FSDP and DeepSpeed nothing (0). Collective at an update.
  // NOLINTNEXTLINE(readability-identifier-naming): the name that Accelerate has
  double clip_grad_norm_(const std::vector<torch::Tensor>& parameters, double max_norm,
                         double norm_type = 2) {
    return core_->clip_grad_norm(parameters, max_norm, norm_type);
  }
  /// Cuts each element to -clip_value .. clip_value. ValueError: FSDP, DeepSpeed.
  // NOLINTNEXTLINE(readability-identifier-naming)
  void clip_grad_value_(const std::vector<torch::Tensor>& parameters, double clip_value) {
    core_->clip_grad_value(parameters, clip_value);
  }

  /// While it lives, operators run in the dtype of mixed_precision, where that is by autocast;
  /// models do so on their own.
  [[nodiscard]] std::unique_ptr<precision::Autocast> autocast() const { return core_->autocast(); }

  // ---- exchange among the processes ----

  // These take a tensor, or a pair, tuple, vector, map or struct of tensors (nn/tensors_in.h).

  /// Every process's rows, in order [sum of n_r, ..]; scalars: [processes]. Alone: as they are.
  template <typename Value>
  Value gather(Value value) const {
    return each_tensor(std::move(value), [&](const auto& tensor) { return core_->gather(tensor); });
  }

  /// The same without what was repeated to fill the last batch of a loader.
  template <typename Value>
  Value gather_for_metrics(Value value) const {
    return each_tensor(gather(std::move(value)), [&](const auto& all) { return cut(all); });
  }

  /// The processes' lists of anything that JSON can hold, one after the other.
  template <typename T>
  std::vector<T> gather_object(const std::vector<T>& objects) const {
    std::vector<T> all;
    const auto bytes = nlohmann::json::to_cbor(objects);  // has NaN, as JSON's text has not
    for (const auto& text : core_->axis().all_gather_bytes({bytes.begin(), bytes.end()})) {
      for (auto& object : nlohmann::json::from_cbor(text).template get<std::vector<T>>()) {
        all.push_back(std::move(object));
      }
    }
    return all;
  }

  /// "sum", "mean" or "max" over the processes ("none": a sum, too). A mean of integers is a float.
  template <typename Value>
  Value reduce(Value value, const std::string& reduction = "sum") const {
    return each_tensor(std::move(value),
                       [&](const auto& tensor) { return core_->reduce(tensor, reduction); });
  }

  /// Dimension `dim` of the largest size of any process, by `pad_index`; stays if there is none.
  template <typename Value>
  Value pad_across_processes(Value value, int64_t dim = 0, double pad_index = 0,
                             bool pad_first = false) const {
    return each_tensor(std::move(value), [&](const auto& tensor) {
      return core_->pad(tensor, dim, pad_index, pad_first);
    });
  }

  /// This process's part of a list or of a tensor's rows, the first ones one longer.
  /// apply_padding: the last element repeated, so that all are equal in length.
  template <typename T>
  T split_between_processes(const T& all, bool apply_padding = false) const {
    const auto count = BatchRows<T>::count(all);
    const auto rows = core_->share_of(count);
    auto mine = BatchRows<T>::slice(all, rows.first, rows.second);
    const auto longest = (count + num_processes() - 1) / num_processes();
    if (!apply_padding || rows.second - rows.first == longest || count == 0) return mine;
    return BatchRows<T>::join({mine, BatchRows<T>::slice(all, count - 1, count)});
  }

  /// A flag that any process may set and all read (early stopping). check_trigger is collective,
  /// and clears it.
  void set_trigger() { trigger_ = true; }
  bool check_trigger();

  // ---- state ----

  /// Saves models, optimizers, schedulers' and scaler's state and generators as a checkpoint of
  /// this number of updates below `directory` (docs/checkpoints.md). Collective.
  void save_state(const std::filesystem::path& directory) { core_->save_state(directory); }

  /// Reads a checkpoint, or the newest below `directory`; any number of ranks and placement may
  /// have written it. Collective. UserError: another model's, damage, none.
  void load_state(const std::filesystem::path& directory) { core_->load_state(directory); }

  /// The same with automatic_checkpoint_naming.
  void save_state() { core_->save_state(); }
  void load_state() { core_->load_state(); }

  /// Objects with state_dict() and load_state_dict(), in JSON, are saved (rank 0's), too.
  template <HasStateDict... Objects>
  void register_for_checkpointing(Objects&... objects) {
    (core_->register_for_checkpointing(record_of(objects)), ...);
  }

  /// The whole model's parameters and buffers, on the CPU. Collective.
  template <typename Impl>
  torch::OrderedDict<std::string, torch::Tensor> get_state_dict(
      const PreparedModel<Impl>& model) const {
    torch::OrderedDict<std::string, torch::Tensor> state;
    for (auto& [name, value] : core_->state_dict(*model.record())) {
      state.insert(name, std::move(value));
    }
    return state;
  }

  /// Writes the model's weights as model.safetensors below `folder`, or above max_shard_bytes as
  /// several files with an index, as transformers reads them. Collective.
  template <typename Impl>
  void save_model(const PreparedModel<Impl>& model, const std::filesystem::path& folder,
                  int64_t max_shard_bytes = 10'000'000'000) const {
    save_weights(get_state_dict(model), folder, max_shard_bytes);
  }

  /// torch::save on the main process alone.
  void save(const auto& object, const std::filesystem::path& file) const {
    if (is_main_process()) torch::save(object, file.string());
  }

  // ---- trackers ----

  /// Opens what log_with names in `run_dir`, on the main process. UserError: another name.
  void init_trackers(const std::filesystem::path& run_dir,
                     const report::HyperParameters& config = {});
  void log(const std::map<std::string, double>& values, int64_t step);
  void end_training();

  /// Records what operators take until its end, or stop().
  [[nodiscard]] std::unique_ptr<Profile> profile(const ProfileOptions& options = {}) const {
    return std::make_unique<Profile>(options, process_index());
  }

  AcceleratorCore& core() const { return *core_; }  ///< for LocalSGD

 private:
  static auto only_if(bool here, auto function) {
    return [here, function = std::move(function)](auto&&... args) {
      if (here) function(std::forward<decltype(args)>(args)...);
    };
  }

  template <typename Value, typename F>
  static Value each_tensor(Value value, const F& f) {
    static_assert(nn::kTensorsAreSeen<Value>, "expected tensors in a value of tensors_in.h");
    nn::visit_tensors(value, [&](torch::Tensor& tensor) { tensor = f(tensor); });
    return value;
  }

  torch::Tensor cut(const torch::Tensor& all) const;
  void save_weights(const torch::OrderedDict<std::string, torch::Tensor>& state,
                    const std::filesystem::path& folder, int64_t max_shard_bytes) const;

  template <typename Object>
  Object& kept(Object& object) {
    return object;
  }
  template <typename Object>
  std::enable_if_t<!std::is_lvalue_reference_v<Object>, Object&> kept(Object&& object) {
    auto owner = std::make_shared<Object>(std::forward<Object>(object));
    kept_.push_back(owner);
    return *owner;
  }

  template <typename... Objects>
  auto prepare_kept(Objects&... objects) {
    (prepare_model(objects), ...);
    if constexpr (sizeof...(objects) == 1) {
      return prepared(objects...);
    } else {
      return std::tuple{prepared(objects)...};
    }
  }

  template <typename Object>
  void prepare_model(Object& object) {
    if constexpr (ModelHolder<Object>) {
      using Prepared = PreparedModel<ModuleOf<Object>>;
      auto inner = shared(object);
      TORCH_CHECK_VALUE(inner != nullptr, "prepare: expected a model, got an empty holder");
      if constexpr (Prepared::kIsWrapped) {
        core_->add_model(*inner, std::make_shared<typename Prepared::Root>(inner));
      } else {
        core_->add_model(*inner, inner);
      }
    }
  }

  template <typename Object>
  auto prepared(Object& object) {
    if constexpr (ModelHolder<Object>) {
      using Prepared = PreparedModel<ModuleOf<Object>>;
      return Prepared(core_, core_->model_of(*object.get()));
    } else if constexpr (std::derived_from<Object, torch::optim::Optimizer>) {
      auto record = core_->add_optimizer(object);
      if constexpr (requires { object.train(), object.eval(); }) {
        record->set_training = [&object](bool training) {
          training ? object.train() : object.eval();
        };
      }
      return PreparedOptimizer(core_, std::move(record));
    } else if constexpr (LoaderHolder<Object>) {
      auto& loader = loader_of(object);
      return PreparedLoader<std::remove_reference_t<decltype(loader)>>(core_, loader);
    } else {
      return PreparedScheduler<Object>(core_, object);
    }
  }

  template <typename Holder>
  static std::shared_ptr<ModuleOf<Holder>> shared(Holder& holder) {
    if constexpr (requires { holder.ptr(); }) {
      return holder.is_empty() ? nullptr : holder.ptr();
    } else {
      return holder;
    }
  }

  std::shared_ptr<AcceleratorCore> core_;
  std::vector<std::shared_ptr<report::Sink>> trackers_;
  std::vector<std::shared_ptr<void>> kept_;
  bool trigger_ = false;
};

/// Calls function(batch_size), at first with `starting_batch_size`; takes 0.9 of it as long as memory
/// does not suffice. Returns the size that did. ValueError when 1 was too much. Ranks decide each
/// for itself: call it where all run out of memory alike.
int64_t find_executable_batch_size(const std::function<void(int64_t batch_size)>& function,
                                   int64_t starting_batch_size = 128);

/// Seeds LibTorch's generators; `device_specific`: another seed on every process.
void set_seed(uint64_t seed, bool device_specific = false);

}  // namespace tessera
