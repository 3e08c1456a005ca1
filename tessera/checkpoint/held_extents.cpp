#include "tessera/checkpoint/held_extents.h"

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/nearest.h"
#include "tessera/checkpoint/tensors.h"

namespace tessera::checkpoint {
namespace {

/// "a, b, c and 4 more".
std::string some(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  const auto shown = std::min(names.size(), kShown);
  const auto text = fmt::format("{}", fmt::join(names.begin(), names.begin() + shown, ", "));
  return names.size() > shown ? fmt::format("{} and {} more", text, names.size() - shown) : text;
}

/// Reads what is not in memory, piece by piece.
void load_stored(const Checkpoint& checkpoint, const HeldExtent& part) {
  constexpr int64_t kMostElements = int64_t{1} << 21;
  const auto dtype = torch_dtype(checkpoint.info(part.extent.name).dtype);
  for (int64_t begin = 0; begin < part.extent.length; begin += kMostElements) {
    const int64_t length = std::min(kMostElements, part.extent.length - begin);
    const auto read = at::empty({length}, dtype);
    const Checkpoint::Request request{
        part.extent.name,
        part.extent.begin + begin,
        {static_cast<std::byte*>(read.mutable_data_ptr()), read.nbytes()},
        part.extent.stripe};
    checkpoint.read_all({&request, 1});
    const auto values = read.to(part.values.scalar_type());
    part.stored.write(begin_in_storage(part.values.narrow(0, begin, length)),
                      {static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
  }
}

}  // namespace

HeldExtent held_extent(std::string name, std::vector<int64_t> shape, int64_t begin,
                       const torch::Tensor& values, const Stripe& stripe) {
  TORCH_INTERNAL_ASSERT(values.dim() == 1 && values.is_contiguous());
  HeldExtent part{.extent = {{begin, values.numel(), stripe},
                             std::move(name),
                             {stored_dtype(values.scalar_type()), std::move(shape)}},
                  .values = values};
  TORCH_INTERNAL_ASSERT(stripe.fits(part.extent.info.num_elements()));
  return part;
}

int64_t begin_in_storage(const torch::Tensor& values) {
  return values.storage_offset() * static_cast<int64_t>(values.element_size());
}

std::vector<HeldExtent> own_share(const std::vector<HeldExtent>& held) {
  std::map<std::pair<int, std::string>, int64_t> bytes, before;  // by replicas and their group
  for (const auto& part : held)
    bytes[{part.replicas, part.replica_group}] += part.extent.num_bytes();
  std::vector<HeldExtent> own;
  for (const auto& part : held) {
    // This replica's bytes of all those, and the part's place among them.
    const std::pair group(part.replicas, part.replica_group);
    const int64_t all = bytes[group], begin = before[group];
    before[group] += part.extent.num_bytes();
    const auto cut = [&](int replica) {
      return even_cut(all, part.replicas, replica, begin, dtype_bytes(part.extent.info.dtype),
                      part.extent.length);
    };
    const int64_t from = cut(part.replica), to = cut(part.replica + 1);
    if (from == to) continue;
    own.push_back(part);
    own.back().extent.begin += from;
    own.back().extent.length = to - from;
    own.back().values = part.values.narrow(0, from, to - from);
  }
  return own;
}

std::vector<std::string> check_expected(const Checkpoint& checkpoint, const Expected& expected,
                                        bool strict) {
  const auto where = checkpoint.path().string();
  std::set<std::string_view> names;
  std::vector<std::string> missing, others;
  for (const auto& [name, shape] : expected) {
    names.insert(name);
    if (std::ranges::count(shape, 0) > 0) continue;  // nobody holds nothing
    if (!checkpoint.contains(name)) {
      if (!strict) {
        missing.push_back(name);
        continue;
      }
      user_error(
          "{}: of another model: expected a tensor '{}', found none; set strict "
          "to false to go on without",
          where, name);
    }
    const auto& found = checkpoint.info(name).shape;
    if (found != shape) {
      user_error("{}: of another model: '{}': expected shape [{}], got [{}]", where, name,
                 fmt::join(shape, ", "), fmt::join(found, ", "));
    }
  }
  for (const auto& [name, info] : checkpoint.tensors()) {
    if (names.contains(name)) continue;
    if (!strict) {
      others.push_back(name);
      continue;
    }
    user_error(
        "{}: of another model or optimizer: expected no tensor '{}'; set strict "
        "to false to leave it out",
        where, name);
  }
  std::vector<std::string> notes;
  if (!missing.empty()) notes.push_back(where + ": lacks, so it stays as it was: " + some(missing));
  if (!others.empty()) notes.push_back(where + ": holds, and it was left out: " + some(others));
  return notes;
}

void load_extents(const Checkpoint& checkpoint, std::span<const HeldExtent> held) {
  const torch::NoGradGuard no_grad;
  std::vector<Checkpoint::Request> requests;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> copies;  // read, wanted
  for (const auto& part : held) {
    if (!checkpoint.contains(part.extent.name)) continue;
    const auto dtype = torch_dtype(checkpoint.info(part.extent.name).dtype);
    auto target = part.values;
    if (target.is_meta()) {
      load_stored(checkpoint, part);
      continue;
    }
    if (!target.is_cpu() || target.scalar_type() != dtype) {
      target = at::empty(part.values.sizes(), dtype);
      copies.emplace_back(target, part.values);
    }
    requests.push_back({part.extent.name,
                        part.extent.begin,
                        {static_cast<std::byte*>(target.mutable_data_ptr()), target.nbytes()},
                        part.extent.stripe});
  }
  checkpoint.read_all(requests);
  for (const auto& [from, to] : copies) to.copy_(from);
}

}  // namespace tessera::checkpoint
