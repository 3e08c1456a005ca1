// Bytes that a training step's operators pass over, beside the least that any step must.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "tessera/config/run_config.h"

namespace tessera::bench {

struct OperatorBytes {
  int64_t calls = 0, bytes = 0;
};
using BytesByOperator = std::map<std::string, OperatorBytes>;

/// Counts the operators of all threads while it lives: what each reads and what it writes, whether it comes from memory or a
/// cache. Of LibTorch's those that have a kernel for a device, by their schemas; views and what is only allocated cost nothing; a
/// product counts its factors and its result once for each block that it is computed in, whatever it packs. Ours as they say (kernels/observed.h). One at a time.
class ByteCount {
 public:
  ByteCount();
  ~ByteCount();
  ByteCount(const ByteCount&) = delete;
  ByteCount& operator=(const ByteCount&) = delete;

  const BytesByOperator& operators() const { return operators_; }

 private:
  void add(const std::string& name, int64_t bytes);

  at::CallbackHandle handle_;
  std::mutex mutex_;
  BytesByOperator operators_;
};

/// What a step of one rank under AdamW cannot do without, if a cache held everything else: every micro-batch reads the weights forward
/// and backward, writes what is kept for the backward and reads it; gradients are written; an update reads and writes
/// weights and both moments and reads gradients.
struct LeastBytes {
  int64_t weights = 0, kept = 0, gradients = 0, update = 0;

  int64_t all() const { return weights + kept + gradients + update; }
};

struct StepBytes {
  BytesByOperator operators;
  LeastBytes least;

  int64_t touched() const;
};

/// Counts the second step of `job`, which this process runs alone; the first one makes what stays.
StepBytes step_bytes(const config::RunConfig& job);

/// A line for each operator that passes over 1 % of them or more, one for the others, and what is least.
std::string table(const StepBytes& bytes);

}  // namespace tessera::bench
