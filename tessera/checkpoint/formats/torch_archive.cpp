#include "tessera/checkpoint/formats/torch_archive.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstring>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

using Entries = std::map<std::string, std::string_view, std::less<>>;

static_assert(std::endian::native == std::endian::little, "storages are read in place");

struct TorchType {
  std::string_view dtype;
  std::string_view storage;  ///< the class of a storage of that type; "" if only an untyped one
  DType type;
};

constexpr std::array kTypes{
    TorchType{"torch.float64", "torch.DoubleStorage", DType::f64},
    TorchType{"torch.float32", "torch.FloatStorage", DType::f32},
    TorchType{"torch.float16", "torch.HalfStorage", DType::f16},
    TorchType{"torch.bfloat16", "torch.BFloat16Storage", DType::bf16},
    TorchType{"torch.int64", "torch.LongStorage", DType::i64},
    TorchType{"torch.int32", "torch.IntStorage", DType::i32},
    TorchType{"torch.int16", "torch.ShortStorage", DType::i16},
    TorchType{"torch.int8", "torch.CharStorage", DType::i8},
    TorchType{"torch.uint64", "", DType::u64},
    TorchType{"torch.uint32", "", DType::u32},
    TorchType{"torch.uint16", "", DType::u16},
    TorchType{"torch.uint8", "torch.ByteStorage", DType::u8},
    TorchType{"torch.bool", "torch.BoolStorage", DType::boolean},
    TorchType{"torch.float8_e4m3fn", "", DType::f8_e4m3},
    TorchType{"torch.float8_e5m2", "", DType::f8_e5m2},
};

constexpr std::string_view kRebuild = "torch._utils._rebuild_tensor_v2";
constexpr std::string_view kRebuildUntyped = "torch._utils._rebuild_tensor_v3";
constexpr std::string_view kRebuildParameter = "torch._utils._rebuild_parameter";
constexpr std::string_view kUntyped = "torch.storage.UntypedStorage";

/// What tensors are made of, and what DeepSpeed puts beside them.
const std::vector<std::string_view>& archive_globals() {
  static const auto names = [] {
    std::vector<std::string_view> all{kRebuild,
                                      kRebuildUntyped,
                                      kRebuildParameter,
                                      kUntyped,
                                      "collections.OrderedDict",
                                      "torch.Size",
                                      "deepspeed.checkpoint.universal_checkpoint.SubparamShape"};
    for (const auto& type : kTypes) {
      all.push_back(type.dtype);
      if (!type.storage.empty()) all.push_back(type.storage);
    }
    return all;
  }();
  return names;
}

/// The entries of an archive by name, without the folder that all are in. UserError: numbers of
/// another byte order, or no archive of torch's.
Entries torch_entries(const std::string& where, std::string_view file) {
  constexpr std::string_view kPickle = "/data.pkl";
  const auto all = stored_zip_entries(where, file);
  const auto pickle = std::ranges::find_if(all, [&](const auto& entry) {
    return entry.first.ends_with(kPickle) && std::ranges::count(entry.first, '/') == 1;
  });
  if (pickle == all.end()) user_error("{}: no archive of torch.save: no data.pkl in it", where);
  const auto folder = pickle->first.substr(0, pickle->first.find('/') + 1);
  Entries entries;
  for (const auto& [name, bytes] : all) {
    if (name.starts_with(folder)) entries.emplace(name.substr(folder.size()), bytes);
  }
  const auto order = entries.find("byteorder");
  if (order != entries.end() && order->second != "little")
    user_error("{}: expected numbers in little-endian order, as this machine has them", where);
  return entries;
}

const TorchType* find_type(std::string_view TorchType::*name, std::string_view value) {
  const auto found = std::ranges::find(kTypes, value, name);
  return value.empty() || found == kTypes.end() ? nullptr : &*found;
}

/// The call that makes a tensor; nullptr if the value is none.
const PickleObject* rebuild_call(const PickleValue& value) {
  const PickleValue* inner = &value;
  if (const auto* parameter = object_of(value, kRebuildParameter);
      parameter != nullptr && !parameter->args->items.empty())
    inner = &parameter->args->items[0];
  const auto* call = object_of(*inner, kRebuild);
  return call != nullptr ? call : object_of(*inner, kRebuildUntyped);
}

struct Storage {
  std::string_view type, key;
  int64_t count = 0;  ///< of elements; of bytes if untyped
};

/// ("storage", class, key, device, count)
std::optional<Storage> storage_of(const PickleValue& value) {
  const auto* persistent = std::get_if<const PicklePersistent*>(&value);
  if (persistent == nullptr) return std::nullopt;
  const auto* id = std::get_if<const PickleSequence*>(&(*persistent)->id);
  if (id == nullptr || (*id)->items.size() != 5) return std::nullopt;
  const auto& items = (*id)->items;
  const auto* type = std::get_if<PickleGlobal>(&items[1]);
  const auto* key = std::get_if<std::string_view>(&items[2]);
  const auto* count = std::get_if<int64_t>(&items[4]);
  if (type == nullptr || key == nullptr || count == nullptr) return std::nullopt;
  return Storage{type->name, *key, *count};
}

/// The elements of a storage that a tensor reaches from its first one on; nullopt: beyond counting.
std::optional<int64_t> reach_of(const std::vector<int64_t>& shape,
                                const std::vector<int64_t>& stride) {
  int64_t reach = 1;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] == 0) return 0;
    int64_t span = 0;
    if (__builtin_mul_overflow(shape[dim] - 1, stride[dim], &span) ||
        __builtin_add_overflow(reach, span, &reach))
      return std::nullopt;
  }
  return reach;
}

/// The bytes of a tensor; nullopt if they do not fit 64 bits. A zero does not excuse an overflow
/// beside it.
std::optional<int64_t> checked_bytes(const TensorInfo& info) {
  int64_t bytes = dtype_bytes(info.dtype);
  for (const int64_t size : info.shape) {
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes)) return std::nullopt;
  }
  return info.num_elements() == 0 ? 0 : bytes;
}

bool is_contiguous(const TorchTensor& tensor) {
  int64_t expected = 1;
  for (size_t dim = tensor.stride.size(); dim-- > 0;) {
    const int64_t size = tensor.info.shape[dim];
    if (size != 1 && tensor.stride[dim] != expected) return false;
    expected *= size;
  }
  return true;
}

}  // namespace

void TorchTensor::read(int64_t begin, std::span<std::byte> destination) const {
  if (destination.empty()) return;
  const auto element = static_cast<size_t>(dtype_bytes(info.dtype));
  if (is_contiguous(*this)) {
    std::memcpy(destination.data(), storage.data() + static_cast<size_t>(begin) * element,
                destination.size());
    return;
  }
  std::vector<int64_t> index(stride.size());
  for (size_t dim = stride.size(); dim-- > 0; begin /= info.shape[dim])
    index[dim] = begin % info.shape[dim];
  for (size_t done = 0; done < destination.size(); done += element) {
    int64_t at = 0;
    for (size_t dim = 0; dim < stride.size(); ++dim) at += index[dim] * stride[dim];
    std::memcpy(destination.data() + done, storage.data() + static_cast<size_t>(at) * element,
                element);
    for (size_t dim = stride.size(); dim-- > 0 && ++index[dim] == info.shape[dim];) index[dim] = 0;
  }
}

TorchArchive::TorchArchive(std::string where, std::string_view file)
    : TorchArchive(where, torch_entries(where, file)) {}

TorchArchive::TorchArchive(std::string where, Entries entries)
    : where_(std::move(where)),
      entries_(std::move(entries)),
      pickle_(where_, entries_.at("data.pkl"), archive_globals()) {}

bool TorchArchive::is_tensor(const PickleValue& value) { return rebuild_call(value) != nullptr; }

TorchTensor TorchArchive::tensor(const PickleValue& value) const {
  const auto* call = rebuild_call(value);
  if (call == nullptr) user_error("{}: expected a tensor, got {}", where_, describe(value));
  const auto& args = call->args->items;
  const bool is_untyped = call->type == kRebuildUntyped;
  const auto storage = args.size() < (is_untyped ? 7 : 4) ? std::nullopt : storage_of(args[0]);
  if (!storage) user_error("{}: a tensor without a storage", where_);
  const auto* named = is_untyped ? std::get_if<PickleGlobal>(&args[6]) : nullptr;
  const auto* type = is_untyped ? find_type(&TorchType::dtype, named ? named->name : "")
                                : find_type(&TorchType::storage, storage->type);
  if (type == nullptr) user_error("{}: a tensor of unknown dtype", where_);

  const auto* offset = std::get_if<int64_t>(&args[1]);
  const auto shape = sizes_of(args[2]), stride = sizes_of(args[3]);
  if (offset == nullptr || *offset < 0 || !shape || !stride || shape->size() != stride->size())
    user_error("{}: a tensor with a damaged offset, shape or stride", where_);

  const auto found = entries_.find(fmt::format("data/{}", storage->key));
  const int64_t element = dtype_bytes(type->type), unit = is_untyped ? 1 : element;
  const int64_t stored = found == entries_.end() ? -1 : static_cast<int64_t>(found->second.size());
  if (stored < 0 || stored % unit != 0 || stored / unit != storage->count)
    user_error("{}: damaged: the storage of a tensor is missing or of another size", where_);
  const int64_t available = stored / element;
  TorchTensor tensor{.info = {.dtype = type->type, .shape = *shape}, .stride = *stride};
  const auto bytes = checked_bytes(tensor.info);
  const auto reach = reach_of(*shape, *stride);
  if (!bytes || !reach || *offset > available || *reach > available - *offset)
    user_error("{}: a tensor reaches beyond its storage of {} bytes", where_, stored);
  // What is expanded could promise any size. DCP and DeepSpeed store no such tensors.
  if (*bytes > stored)
    user_error("{}: a tensor has more elements than its storage; save a clone of it", where_);
  tensor.storage = found->second.substr(static_cast<size_t>(*offset * element));
  return tensor;
}

std::optional<DType> torch_dtype_named(std::string_view name) {
  const auto* type = find_type(&TorchType::dtype, name);
  return type == nullptr ? std::nullopt : std::optional(type->type);
}

std::vector<std::string_view> torch_dtype_names() {
  std::vector<std::string_view> names;
  for (const auto& type : kTypes) names.push_back(type.dtype);
  return names;
}

}  // namespace tessera::checkpoint
