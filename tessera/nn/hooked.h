// Modules that other parts of Tessera can attach to: the first of the three mechanisms
// (docs/architecture.md).
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <any>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/nn/tensors_in.h"

namespace tessera::nn {

/// One call of a module: its arguments, its forward and its result. All live as long as the Call.
class Call {
 public:
  virtual ~Call() = default;

  /// Computes the result from the tensors that `inputs` point to, which may be replaced before. May
  /// run more than once, if `runs_again`.
  void forward();

  /// Frees the result; `outputs` and added_outputs are empty.
  void drop_result();

  TensorPointers inputs;   ///< the tensors of the arguments in order, undefined ones included
  TensorPointers outputs;  ///< likewise of the result, after forward()
  std::vector<torch::Tensor> added_outputs;  ///< by add_output, in the last forward()
  bool runs_again = true;  ///< false: forward takes an argument's contents away (it only moves)

 private:
  virtual void compute() = 0;  // the result, and its `outputs`
  virtual void reset() = 0;
};

/// Marks a tensor that a forward leaves somewhere for the loss instead of returning it (a router's
/// auxiliary loss in a member), and gives what to keep. To hooks and checkpointing it is then a
/// further output of every call that is under way on this thread; without this they know nothing of
/// it.
///
///     auxiliary_loss = nn::add_output(balance(scores));
torch::Tensor add_output(const torch::Tensor& tensor);

/// What runs around one call of a module. Every member may be empty. A call is one forward and, if
/// its output took part in a loss, one backward; calls may be nested and repeated (micro-batches).
struct Hooks {
  std::function<void()> before_forward;
  /// `backward_follows`: the output needs a gradient, so that a backward of this call is expected.
  /// Inside of a checkpointed module's first forward it never does; nn/recomputation.h tells.
  std::function<void(bool backward_follows)> after_forward;
  std::function<void()> before_backward;  ///< the gradient of the output is known
  /// Every gradient of the module's parameters from this call is complete. Not in autograd::grad or
  /// a backward with chosen inputs.
  std::function<void()> after_backward;
  std::function<void(torch::Tensor& first)> replace_first_input;  ///< of the tensor arguments
  std::function<void(torch::Tensor& input)>
      replace_input;  ///< may replace a defined tensor argument
  std::function<void(torch::Tensor& output)> replace_output;  ///< likewise one of the result
  /// Instead of `call->forward()`: computes the outputs, now and perhaps once more during backward
  /// (activation checkpointing). At most one of a module's hooks has it.
  std::function<void(const std::shared_ptr<Call>& call)> around;
  std::any owner;  ///< whose they are, for those who take them off again
};

/// A module that hooks can be attached to. Derive the implementation from it and make the holder
/// with `Hooked`:
///
///     struct BlockImpl : nn::Hookable { torch::Tensor forward(const torch::Tensor& x); ... };
///     using Block = nn::Hooked<BlockImpl>;
///
/// `TORCH_MODULE` holders call `forward` statically, so that nothing can be attached to them.
class Hookable : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  void add_hooks(Hooks hooks);
  void remove_hooks(const std::function<bool(const Hooks& hooks)>& which);
  const std::vector<Hooks>& hooks() const { return hooks_; }

  /// True of a module whose forward already adds to its parameters' .grad() (head and loss in one).
  virtual bool forward_computes_gradients() const { return false; }

  /// False of a module that uses what modules in it have without calling them: none of those can have
  /// its parameters gathered for its own calls.
  virtual bool calls_what_it_contains() const { return true; }

  /// False of a module whose inputs stay as they are under mixed precision.
  virtual bool inputs_are_cast() const { return true; }

  /// Parameters that it uses and another module has (tied).
  virtual std::vector<torch::Tensor> borrowed_parameters() const { return {}; }

 private:
  std::vector<Hooks> hooks_;
};

namespace detail {
/// Runs the hooks of `module` around `call`; what `outputs` point to is the result.
void call_with_hooks(Hookable& module, const std::shared_ptr<Call>& call);
}  // namespace detail

/// Can forward() be given values of these types? Not if it takes one by a reference to change it.
template <typename Impl, typename... Args>
inline constexpr bool kTakesValues = requires(Impl& module, Args&&... args) {
  module.forward(std::move(args)...);
};

/// The holder of a Hookable: as torch::nn::ModuleHolder, but calling it runs the hooks around
/// `forward`. Arguments are taken by value and given to `forward`, which takes them by value or
/// const reference; one that only moves is moved on where `forward` takes it by value. Hooks see
/// the tensors in arguments and result (tensors_in.h). Without hooks a call costs one comparison
/// more than a plain call.
template <typename Impl>
class Hooked : public torch::nn::ModuleHolder<Impl> {
 public:
  using torch::nn::ModuleHolder<Impl>::ModuleHolder;
  using torch::nn::ModuleHolder<Impl>::get;

  template <typename... Args>
  auto operator()(Args... args) {
    Impl& module = *get();
    static_assert(kTakesValues<Impl, Args...>,
                  "forward() of a tessera::nn::Hookable takes these arguments by value or const "
                  "reference: it gets copies, so what it changes, it returns");
    using Result = std::decay_t<decltype(run(module, args...))>;
    static_assert(kTensorsAreSeen<Result>,
                  "forward() of a tessera::nn::Hookable returns a tensor, or a pair, tuple, array, "
                  "vector, optional or map of tensors and numbers, or a struct with a member "
                  "template visit_tensors(visit) that calls visit(member) for each of those");
    if (module.hooks().empty()) return Result(run(module, args...));
    struct Held : Call {
      Held(Impl& module, Args... args) : module(&module), arguments(std::move(args)...) {}
      void compute() override {
        result.emplace(
            std::apply([this](auto&... args) { return run(*module, args...); }, arguments));
        visit_tensors(*result, [this](torch::Tensor& tensor) { outputs.push_back(&tensor); });
      }
      void reset() override { result.reset(); }
      Impl* module;
      std::tuple<Args...> arguments;
      std::optional<Result> result;
    };
    auto held = std::make_shared<Held>(module, std::move(args)...);
    held->runs_again = takes_lvalues<Args...>();
    visit_tensors(held->arguments, [&](torch::Tensor& tensor) { held->inputs.push_back(&tensor); });
    detail::call_with_hooks(module, held);
    Result result = std::move(*held->result);
    held->drop_result();
    return result;
  }

 private:
  template <typename... Args>
  static constexpr bool takes_lvalues() {
    return requires(Impl & module, Args & ... args) { module.forward(args...); };
  }

  template <typename... Args>
  static decltype(auto) run(Impl& module, Args&... args) {
    if constexpr (takes_lvalues<Args...>()) {
      return module.forward(args...);
    } else {
      return module.forward(std::move(args)...);
    }
  }
};

}  // namespace tessera::nn
