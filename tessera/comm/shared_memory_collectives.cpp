// The collectives of shared_memory.h, as what each rank writes to its slots and reads from others'.
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstring>

#include "tessera/comm/shared_memory.h"

namespace tessera::comm {

void SharedMemory::all_reduce(ReduceOp op, at::ScalarType dtype, void* data, int64_t count,
                              const Deadline& deadline) {
  const int64_t unit = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t bytes = count * unit;
  if (bytes == 0) return barrier(deadline);
  // A chunk is size_ parts, rank r adds up part r; parts are whole elements and cache lines.
  const int64_t wanted = std::min(kSlotBytes / size_, (bytes + size_ - 1) / size_);
  const int64_t part =
      std::max<int64_t>(64, std::min((wanted + 63) / 64 * 64, kSlotBytes / size_ / 64 * 64));
  const int64_t chunks = (bytes + part * size_ - 1) / (part * size_);
  auto* memory = static_cast<std::byte*>(data);
  const auto length_of = [&](int64_t chunk, int r) {
    return std::clamp<int64_t>(bytes - (chunk * size_ + r) * part, 0, part);
  };
  const auto start_of = [&](int64_t chunk, int r) { return memory + (chunk * size_ + r) * part; };
  const auto post_parts = [&](int64_t chunk) {
    std::byte* to = open_slot(kParts, deadline);
    for (int r = 0; r < size_; ++r) {
      if (r != rank_ && length_of(chunk, r) > 0) {
        std::memcpy(to + r * part, start_of(chunk, r), length_of(chunk, r));
      }
    }
    post(kParts);
  };
  guarded([&] {
    uint32_t round = rounds_[kParts];
    post_parts(0);
    std::vector<const void*> parts(static_cast<size_t>(size_));
    for (int64_t chunk = 0; chunk < chunks; ++chunk, ++round) {
      if (chunk + 1 < chunks) post_parts(chunk + 1);
      for (int r = 0; r < size_; ++r) {
        if (r != rank_) await(kParts, r, round, deadline);
        parts[r] = r == rank_ ? start_of(chunk, r) : slot(r, kParts, round) + rank_ * part;
      }
      const int64_t mine = length_of(chunk, rank_);
      std::byte* result = open_slot(kResults, deadline);
      reduce_parts(op, dtype, parts, result, mine / unit);
      finish(kParts, round);
      const uint32_t result_round = rounds_[kResults];
      post(kResults);
      if (mine > 0) std::memcpy(start_of(chunk, rank_), result, mine);
      for (int r = 0; r < size_; ++r) {
        if (r == rank_) continue;
        await(kResults, r, result_round, deadline);
        const int64_t length = length_of(chunk, r);
        if (length > 0) {
          std::memcpy(start_of(chunk, r), slot(r, kResults, result_round), length);
        }
      }
      finish(kResults, result_round);
    }
  });
}

SharedMemory::Parts SharedMemory::even_parts(const void* input, int64_t part_bytes) const {
  Parts parts;
  for (int r = 0; r < size_; ++r) {
    parts.emplace_back(static_cast<const std::byte*>(input) + r * part_bytes, part_bytes);
  }
  return parts;
}

void SharedMemory::distribute(const Parts& inputs, int64_t longest, int64_t unit, const Use& use,
                              const Deadline& deadline) {
  if (longest == 0) return barrier(deadline);
  const int64_t stride = std::max(unit, kSlotBytes / size_ / 64 * 64);
  const auto post_parts = [&](int64_t begin) {
    std::byte* to = open_slot(kParts, deadline);
    for (int r = 0; r < size_; ++r) {
      const int64_t length = std::min(stride, std::ssize(inputs[r]) - begin);
      if (r != rank_ && length > 0) std::memcpy(to + r * stride, inputs[r].data() + begin, length);
    }
    post(kParts);
  };
  guarded([&] {
    uint32_t round = rounds_[kParts];
    post_parts(0);
    std::vector<const void*> parts(static_cast<size_t>(size_));
    for (int64_t begin = 0; begin < longest; begin += stride, ++round) {
      if (begin + stride < longest) post_parts(begin + stride);
      for (int r = 0; r < size_; ++r) {
        if (r != rank_) await(kParts, r, round, deadline);
        parts[r] = slot(r, kParts, round) + rank_ * stride;
      }
      const auto& own = inputs[rank_];
      parts[rank_] = begin < std::ssize(own) ? own.data() + begin : nullptr;
      use(begin, std::min(stride, longest - begin), parts);
      finish(kParts, round);
    }
  });
}

void SharedMemory::reduce_scatter(ReduceOp op, at::ScalarType dtype, void* output,
                                  const void* input, int64_t count, const Deadline& deadline) {
  const int64_t unit = static_cast<int64_t>(c10::elementSize(dtype));
  const Use reduce = [&](int64_t begin, int64_t length, std::span<const void* const> parts) {
    reduce_parts(op, dtype, parts, static_cast<std::byte*>(output) + begin, length / unit);
  };
  distribute(even_parts(input, count * unit), count * unit, unit, reduce, deadline);
}

void SharedMemory::scatter(void* output, const void* input, int64_t part_bytes, int root,
                           const Deadline& deadline) {
  const Use copy = [&](int64_t begin, int64_t length, std::span<const void* const> parts) {
    auto* to = static_cast<std::byte*>(output) + begin;
    if (to != parts[root]) std::memcpy(to, parts[root], length);
  };
  const auto inputs =
      rank_ == root ? even_parts(input, part_bytes) : Parts(static_cast<size_t>(size_));
  distribute(inputs, part_bytes, 1, copy, deadline);
}

void SharedMemory::all_to_all(std::span<const std::span<std::byte>> outputs, const Parts& inputs,
                              int64_t longest, const Deadline& deadline) {
  const Use copy = [&](int64_t begin, int64_t length, std::span<const void* const> parts) {
    for (int r = 0; r < size_; ++r) {
      const int64_t here = std::min(length, std::ssize(outputs[r]) - begin);
      if (here > 0) std::memcpy(outputs[r].data() + begin, parts[r], here);
    }
  };
  distribute(inputs, longest, 1, copy, deadline);
}

void SharedMemory::all_gather(std::span<void* const> outputs, std::span<const int64_t> sizes,
                              const void* input, const Deadline& deadline) {
  const auto* from = static_cast<const std::byte*>(input);
  auto* own = static_cast<std::byte*>(outputs[rank_]);
  const int64_t rounds = std::max<int64_t>(
      1, (*std::ranges::max_element(sizes) + kSlotBytes - 1) / kSlotBytes);  // 1: a barrier
  const auto length_of = [&](int64_t index, int r) {
    return std::clamp<int64_t>(sizes[r] - index * kSlotBytes, 0, kSlotBytes);
  };
  const auto post_input = [&](int64_t index) {
    std::byte* to = open_slot(kResults, deadline);
    const int64_t begin = index * kSlotBytes, length = length_of(index, rank_);
    if (length > 0) std::memcpy(to, from + begin, length);
    post(kResults);
    if (length > 0 && own != from) std::memcpy(own + begin, from + begin, length);  // in cache
  };
  guarded([&] {
    uint32_t round = rounds_[kResults];
    post_input(0);
    for (int64_t index = 0; index < rounds; ++index, ++round) {
      if (index + 1 < rounds) post_input(index + 1);
      for (int r = 0; r < size_; ++r) {
        if (r == rank_) continue;
        await(kResults, r, round, deadline);
        const int64_t length = length_of(index, r);
        if (length > 0) {
          std::memcpy(static_cast<std::byte*>(outputs[r]) + index * kSlotBytes,
                      slot(r, kResults, round), length);
        }
      }
      finish(kResults, round);
    }
  });
}

void SharedMemory::broadcast(void* data, int64_t bytes, int root, const Deadline& deadline) {
  std::vector<int64_t> sizes(static_cast<size_t>(size_), 0);
  std::vector<void*> outputs(static_cast<size_t>(size_), nullptr);
  sizes[root] = bytes;
  outputs[root] = data;
  all_gather(outputs, sizes, data, deadline);
}

void SharedMemory::barrier(const Deadline& deadline) {
  const std::vector<int64_t> sizes(static_cast<size_t>(size_), 0);
  const std::vector<void*> outputs(static_cast<size_t>(size_), nullptr);
  all_gather(outputs, sizes, nullptr, deadline);
}

}  // namespace tessera::comm
