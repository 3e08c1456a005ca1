#include "tessera/checkpoint/tensors.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"

namespace tessera::checkpoint {
namespace {

// LibTorch's types, in the order of DType.
constexpr std::array kTorchDtypes{
    torch::kDouble, torch::kFloat, torch::kHalf, torch::kBFloat16,      torch::kLong,
    torch::kInt,    torch::kShort, torch::kChar, torch::kUInt64,        torch::kUInt32,
    torch::kUInt16, torch::kByte,  torch::kBool, torch::kFloat8_e4m3fn, torch::kFloat8_e5m2};

std::span<std::byte> bytes_of(const torch::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

/// Does read_into for a part on the CPU in the stored dtype.
void read_stretches(const TensorSource& source, const std::string& name, int64_t begin,
                    const torch::Tensor& part, const Stripe& stripe) {
  const auto bytes = bytes_of(part);
  const size_t element = part.element_size();
  const auto read = [&](int64_t position, int64_t k, int64_t n) {
    source.read(
        name, position,
        bytes.subspan(static_cast<size_t>(k - begin) * element, static_cast<size_t>(n) * element));
  };
  stripe.for_each_stretch(begin, part.numel(), read);
}

}  // namespace

torch::Dtype torch_dtype(DType dtype) { return kTorchDtypes[static_cast<size_t>(dtype)]; }

DType stored_dtype(torch::Dtype dtype) {
  const auto found = std::ranges::find(kTorchDtypes, dtype);
  if (found == kTorchDtypes.end()) {
    user_error("safetensors cannot hold the dtype {}", c10::toString(dtype));
  }
  return static_cast<DType>(found - kTorchDtypes.begin());
}

void read_into(const TensorSource& source, const std::string& name, int64_t begin,
               const torch::Tensor& part, const Stripe& stripe) {
  const torch::NoGradGuard no_grad;
  TORCH_INTERNAL_ASSERT(part.dim() == 1 && part.is_contiguous());
  const auto dtype = torch_dtype(source.info(name).dtype);
  if (part.is_cpu() && part.scalar_type() == dtype) {
    return read_stretches(source, name, begin, part, stripe);
  }
  constexpr int64_t kBufferBytes = int64_t{4} << 20;
  const int64_t step = kBufferBytes / static_cast<int64_t>(c10::elementSize(dtype));
  const auto buffer = at::empty({std::min(step, part.numel())}, dtype);
  for (int64_t i = 0; i < part.numel(); i += step) {
    const auto values = buffer.narrow(0, 0, std::min(step, part.numel() - i));
    read_stretches(source, name, begin + i, values, stripe);
    part.narrow(0, i, values.numel()).copy_(values);
  }
}

torch::Tensor read_tensor(const TensorSource& source, const std::string& name) {
  const auto& info = source.info(name);
  const auto tensor = at::empty(info.shape, torch_dtype(info.dtype));
  source.read(name, 0, bytes_of(tensor));
  return tensor;
}

void save_safetensors(const std::filesystem::path& path,
                      const std::map<std::string, torch::Tensor>& tensors,
                      const Metadata& metadata) {
  std::vector<std::pair<std::string, torch::Tensor>> order(tensors.begin(), tensors.end());
  std::ranges::stable_sort(order, std::greater<>(),
                           [](const auto& item) { return item.second.element_size(); });
  std::vector<std::pair<std::string, TensorInfo>> infos;
  for (const auto& [name, tensor] : order) {
    infos.emplace_back(name, TensorInfo{stored_dtype(tensor.scalar_type()), tensor.sizes().vec()});
  }
  AtomicFile file(path);
  file.write(format_safetensors_header(path, infos, metadata));
  for (const auto& [name, tensor] : order) {
    const auto plain = tensor.detach().cpu().contiguous();
    file.write({static_cast<const char*>(plain.const_data_ptr()), plain.nbytes()});
  }
  file.commit();
}

}  // namespace tessera::checkpoint
