#include "tessera/checkpoint/parts.h"

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

}  // namespace

Part make_part(std::string name, std::vector<int64_t> shape, int64_t begin,
               const torch::Tensor& values, const Stripe& stripe) {
  TORCH_INTERNAL_ASSERT(values.dim() == 1 && values.is_contiguous());
  Part part{.piece = {.name = std::move(name),
                      .info = {stored_dtype(values.scalar_type()), std::move(shape)},
                      .begin = begin,
                      .length = values.numel(),
                      .stripe = stripe},
            .values = values};
  TORCH_INTERNAL_ASSERT(stripe.fits(part.piece.info.num_elements()));
  return part;
}

std::vector<Part> own_share(const std::vector<Part>& held) {
  std::map<std::pair<int, std::string>, int64_t> bytes, before;  // by replicas and sharers
  for (const auto& part : held) bytes[{part.replicas, part.sharers}] += part.piece.num_bytes();
  std::vector<Part> own;
  for (const auto& part : held) {
    // This replica's bytes of all those, and the part's place among them.
    const std::pair group(part.replicas, part.sharers);
    const int64_t all = bytes[group], begin = before[group];
    before[group] += part.piece.num_bytes();
    const auto cut = [&](int replica) {
      return even_cut(all, part.replicas, replica, begin, dtype_bytes(part.piece.info.dtype),
                      part.piece.length);
    };
    const int64_t from = cut(part.replica), to = cut(part.replica + 1);
    if (from == to) continue;
    own.push_back(part);
    own.back().piece.begin += from;
    own.back().piece.length = to - from;
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

void load_parts(const Checkpoint& checkpoint, std::span<const Part> parts) {
  const torch::NoGradGuard no_grad;
  std::vector<Checkpoint::Request> requests;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> copies;  // read, wanted
  for (const auto& part : parts) {
    if (!checkpoint.contains(part.piece.name)) continue;
    const auto dtype = torch_dtype(checkpoint.info(part.piece.name).dtype);
    auto target = part.values;
    if (!target.is_cpu() || target.scalar_type() != dtype) {
      target = at::empty(part.values.sizes(), dtype);
      copies.emplace_back(target, part.values);
    }
    requests.push_back({part.piece.name,
                        part.piece.begin,
                        {static_cast<std::byte*>(target.mutable_data_ptr()), target.nbytes()},
                        part.piece.stripe});
  }
  checkpoint.read_all(requests);
  for (const auto& [from, to] : copies) to.copy_(from);
}

}  // namespace tessera::checkpoint
