#include "tessera/comm/counters.h"

#include <c10/util/Exception.h>

namespace tessera::comm {

const char* name_of(Operation operation) {
  switch (operation) {
    case Operation::all_reduce:
      return "all_reduce";
    case Operation::broadcast:
      return "broadcast";
    case Operation::all_gather:
      return "all_gather";
    case Operation::reduce_scatter:
      return "reduce_scatter";
    case Operation::scatter:
      return "scatter";
    case Operation::all_to_all:
      return "all_to_all";
    case Operation::barrier:
      return "barrier";
    case Operation::objects:
      return "all_gather_bytes";
  }
  TORCH_INTERNAL_ASSERT(false);
}

Counter& Counters::of(Operation operation) {
  switch (operation) {
    case Operation::all_reduce:
      return all_reduce;
    case Operation::broadcast:
      return broadcast;
    case Operation::all_gather:
      return all_gather;
    case Operation::reduce_scatter:
      return reduce_scatter;
    case Operation::scatter:
      return scatter;
    case Operation::all_to_all:
      return all_to_all;
    case Operation::barrier:
      return barrier;
    case Operation::objects:
      return objects;
  }
  TORCH_INTERNAL_ASSERT(false);
}

Counter Counters::total() const {
  Counter sum;
  for (const Counter* counter : {&all_reduce, &broadcast, &all_gather, &reduce_scatter, &scatter,
                                 &all_to_all, &barrier, &objects}) {
    sum.calls += counter->calls;
    sum.bytes += counter->bytes;
    sum.wait_seconds += counter->wait_seconds;
  }
  return sum;
}

}  // namespace tessera::comm
