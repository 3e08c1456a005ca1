// The answers so far in the words of the questions, and what they mean in memory.
#pragma once

#include <optional>
#include <string>

#include "tessera/config/accelerate/questions.h"

namespace tessera::config::accelerate {

std::optional<int64_t> whole_number(const std::string& text);
std::optional<double> count_from(const std::string& text);  ///< "7B", "350M", "1e8"; at least 1

struct Context {
  const Surroundings& here;
  const Answers& answers;

  std::string answer(const std::string& name) const;  ///< "": none
  int64_t number(const std::string& name) const { return whole_number(answer(name)).value_or(1); }

  bool on_gpu() const { return answer("device") == "gpu"; }
  int64_t num_machines() const { return number("num_machines"); }
  int64_t num_processes() const { return number("num_processes"); }
  int64_t processes_per_machine() const { return num_processes() / num_machines(); }
  int64_t num_gpus() const { return static_cast<int64_t>(here.machine.gpus.size()); }
  std::string strategy() const { return num_processes() > 1 ? answer("strategy") : "replicate"; }
  bool is_fsdp() const { return strategy() == "fsdp" || strategy() == "hybrid"; }
  bool is_zero() const { return strategy() == "zero1" || strategy() == "zero2"; }
  bool is_mixed() const { return answer("mixed_precision") != "no"; }
  std::optional<double> num_parameters() const;  ///< of the model; nothing if it was not said
};

/// Parameters, gradients and AdamW's states in each process, in bytes per parameter: all of them,
/// and those that offloading leaves on the GPU.
struct States {
  double all, left_by_offload;
};

States states(const Context& context, const std::string& strategy, bool mixed);

/// "26.1 GiB", or "16 bytes per parameter" if the model's size was not said.
std::string amount(const Context& context, double bytes_per_parameter);

/// More than the memory of this machine, as far as that can be told: a GPU's cannot.
bool is_too_much(const Context& context, double bytes_per_parameter);

/// "26.1 GiB per process, 104.3 GiB: too much": of one process, and of all of this machine.
std::string per_process(const Context& context, double bytes_per_parameter);

}  // namespace tessera::config::accelerate
