// Behind data_parallel.h: what a model's units do before and after each forward and backward. For
// this folder alone.
#pragma once

#include <torch/csrc/autograd/edge.h>

#include <deque>
#include <map>
#include <set>
#include <unordered_set>

#include "tessera/parallel/data/buffer_sync.h"
#include "tessera/parallel/data/data_parallel.h"

namespace tessera::parallel {

struct DataParallel::Engine : std::enable_shared_from_this<Engine> {
  /// A forward and its backward through one stage; without a pipeline always the same.
  struct Pass {
    int stage = 0, micro_batch = 0;
    // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 reads a 0 into it
    auto operator<=>(const Pass&) const = default;
  };
  struct Calls {
    std::map<Pass, int64_t> backwards;      // calls whose backward is still to come
    int stage = 0;                          // that ran it last
    bool done = false;                      // in this backward, everything that was to come
    bool launched = false;                  // since the last finish_backward
    bool again = false;                     // a backward reached it after it was launched
    bool updated = false;                   // in this step, by on_reduced
    int in_backward = 0;                    // calls of its modules whose backward is under way
    bool ran = false;                       // in this step
    bool forwarded = false;                 // is in the list of those
    std::set<const nn::Hookable*> forward;  // the unit's modules that ended it, in this forward
    int running = 0;                        // of its modules, the outer ones of nested calls too
  };

  const torch::nn::Module* model = nullptr;  // as it was sharded; may be gone
  bool absorbed = false;                     // by the engine of a larger model
  DataParallelOptions options;
  DataAxes axes;
  std::vector<Unit> units;
  std::vector<UnitModules> modules;
  std::vector<Calls> calls;
  std::vector<Slice> slices;
  std::vector<std::pair<size_t, size_t>> slices_of_unit;  // first and end of each unit's
  std::function<void(size_t slice)> on_reduced;           // of DataParallel
  std::vector<torch::Tensor> squares;  // sum_of_squares(), where the unit was updated in this step
  bool slices_taken = false, leaves_taken = false;  // by an optimizer of the user's
  struct Leaf {
    std::string name;
    torch::Tensor tensor;
    size_t unit = 0, buffer = 0, entry = 0;
    int64_t offset = 0;           // in the slice of its buffer
    std::optional<size_t> slice;  // of slices, in which it lies
  };
  std::vector<Leaf> leaves;
  /// Where parameters' gradients arrive: nodes whose hooks tell of them.
  std::vector<decltype(torch::autograd::Edge::function)> watched;
  NamedBuffers module_buffers;
  std::vector<size_t> order;      // units in the order of the forward; at first as given
  std::vector<size_t> place;      // of each unit in `order`
  std::vector<size_t> forwarded;  // since the last backward that reduced, each once
  std::deque<size_t> reducing;    // started, not finished
  size_t launched = 0;            // units whose reduction was started, from the end of `order`
  bool started = false;           // all of them, by start_reductions
  std::weak_ptr<Engine> reduces_after, reduces_before;  // of DataParallel
  Pass pass;
  int num_steps = 0;           // finish_step() was called
  bool has_gradients = false;  // since the last of them
  bool order_known = false, requires_sync = true, is_last = true;
  std::shared_ptr<offload::StoredRegions> regions;  // of slices on drives
  std::shared_ptr<offload::StoredRegions> gradient_regions;
  std::vector<FlatBuffer*> stored_gradients;  // by region
  FlatBuffer* brought = nullptr;              // of these, for an optimizer
  bool unsharded = false;                     // by the user: hooks free nothing
  bool stepped = false;  // unshard() met what an optimizer wrote, whose finish_step() is to come
  bool amax_is_shared = false;  // of parameters in 8 bits, as they are now
  double divide_factor = 1;
  struct UnitMemory {
    int64_t gathered = 0, gradients = 0;
    bool whole = false;  // a full_shard unit is in memory
  };
  std::vector<UnitMemory> unit_memory;
  int64_t gathered_units = 0;  // of full_shard
  DataParallelMemory memory;

  bool watching = false;
  std::optional<size_t> nonfinite_output;

  /// The engines of what was sharded inside of `model` before, with the paths of those parts.
  using Inside = std::vector<std::pair<std::string, std::shared_ptr<Engine>>>;
  static Inside inside(torch::nn::Module& model);
  /// The parameters of those engines. ValueError: another module of `model` has one of them, too.
  static std::unordered_set<const void*> sharded_in(const Inside& inside,
                                                    const torch::nn::Module& model);
  /// Is it a parameter that an engine has?
  static bool shards(const torch::Tensor& parameter);
  /// ValueError: one of those engines is not to be taken over.
  void check_absorbs(const std::string& path, const Engine& inner) const;
  /// Takes over its units, which share `copies`.
  void absorb(const std::string& path, Engine& inner, std::shared_ptr<HostCopies>& copies);

  struct Arrival;

  void attach();
  void watch_output(size_t unit, const torch::Tensor& output);
  void keep_beyond(size_t unit, torch::Tensor& output) const;
  void list_slices();
  static void list_stored(const FlatBuffer& buffer, int64_t begin, Slice& slice);
  void store_regions();
  void read_gradients_ahead(size_t unit);
  void bring_gradient(size_t region);
  void list_leaves();
  void take_leaves();
  void give_leaves_gradients();
  void watch_gradients(size_t unit);

  void begin_pass(const Pass& next);
  bool keeps_whole(size_t unit) const;
  bool backward_reads(size_t unit) const;

  // Hooks.
  void before_forward(size_t unit, nn::Hookable& module);
  void after_forward(size_t unit, const nn::Hookable& module, bool backward_follows);
  void before_backward(size_t unit);
  void after_backward(size_t unit);

  // Parameters.
  void share_amax();
  void prefetch(size_t unit, int direction);
  void read_from(std::ptrdiff_t position, int direction);
  void read_ahead(size_t unit, int direction);
  void finish_regions();
  void note_memory(size_t unit);  // after each change
  void note_all_memory();
  void set_order(std::vector<size_t> next);

  // Gradients.
  bool may_launch() const;
  void launch_ready();
  void launch_next();
  void launch(size_t unit);
  void begin_gradient(size_t unit);
  void reopen(size_t unit);
  void gradient_arrives(size_t unit, const torch::Tensor& parameter);
  void check_all_ran();
  void settle(size_t at_most);
  void update(size_t unit);
  void check_not_updated(size_t unit) const;
  /// Sum of squares of this rank's part of the unit's gradient: float64, 0-d, on the gradient's device; the host does not wait.
  torch::Tensor sum_of_squares(size_t unit) const;
  void start_reductions();
  void finish_backward();
  void check_frozen() const;
  void agree_on_arrivals();
  void agree_on_order();
  void check_has_optimizer() const;
  static void check_step_ended(const Unit& unit, bool ended, const char* before);
  bool backward_is_open() const;
  void check_backward_ended() const;
  void drop_gradients();
  void finish_step();
};

}  // namespace tessera::parallel
