// What communication cost: counted per axis and operation.
#pragma once

#include <cstdint>

namespace tessera::comm {

struct Counter {
  int64_t calls = 0;
  int64_t bytes = 0;        ///< of the whole tensor (all_gather: output, others: input)
  double wait_seconds = 0;  ///< the caller's thread stood still in Work::wait
};

enum class Operation {
  all_reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  scatter,
  all_to_all,
  barrier,
  objects
};

const char* name_of(Operation operation);

/// A group of one rank counts nothing: nothing is sent.
struct Counters {
  Counter all_reduce, broadcast, all_gather, reduce_scatter, scatter, all_to_all, barrier;
  Counter objects;         ///< all_gather_bytes
  int64_t sent_bytes = 0;  ///< of broadcasts whose root is this rank

  Counter& of(Operation operation);
  Counter total() const;
};

}  // namespace tessera::comm
