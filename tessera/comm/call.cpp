#include "tessera/comm/call.h"

#include <fmt/format.h>

#include <stdexcept>

namespace tessera::comm {

namespace {

Call from_code(const Call::Code& code) {
  return {.operation = static_cast<Operation>(code.kind >> 56),
          .bytes = static_cast<int64_t>(code.bytes),
          .dtype = static_cast<at::ScalarType>(code.kind >> 48 & 0xff),
          .op = static_cast<ReduceOp>(code.kind >> 40 & 0xff),
          .root = static_cast<int>(code.kind & 0xffffffff)};
}

}  // namespace

Call::Code Call::code() const {
  return {.kind = uint64_t{static_cast<uint8_t>(operation)} << 56 |
                  uint64_t{static_cast<uint8_t>(dtype)} << 48 |
                  uint64_t{static_cast<uint8_t>(op)} << 40 | uint64_t{static_cast<uint32_t>(root)},
          .bytes = operation == Operation::objects ? 0 : static_cast<uint64_t>(bytes)};
}

std::string describe(const Call& call) {
  const auto with = [&](const std::string& detail) {
    return fmt::format("{} of {} B ({}{})", name_of(call.operation), call.bytes,
                       c10::toString(call.dtype), detail);
  };
  switch (call.operation) {
    case Operation::all_reduce:
    case Operation::reduce_scatter:
      return with(fmt::format(", {}", name_of(call.op)));
    case Operation::broadcast:
    case Operation::scatter:
      return with(fmt::format(", root {}", call.root));
    case Operation::all_gather:
    case Operation::all_to_all:
      return with("");
    case Operation::barrier:
    case Operation::objects:
      return name_of(call.operation);
  }
  return {};
}

void check_same_call(int rank, const Call& call, int peer, const Call::Code& theirs) {
  if (call.code() == theirs) return;
  throw std::runtime_error(
      fmt::format("rank {} called {}, rank {} {}; all ranks must call the same", rank,
                  describe(call), peer, describe(from_code(theirs))));
}

}  // namespace tessera::comm
