#include "tessera/checkpoint/formats/dcp_metadata.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/formats/pickle.h"
#include "tessera/checkpoint/formats/torch_archive.h"

namespace tessera::checkpoint {
namespace {

constexpr std::string_view kMetadata = "torch.distributed.checkpoint.metadata.Metadata";
constexpr std::string_view kIndex = "torch.distributed.checkpoint.metadata.MetadataIndex";
constexpr std::string_view kTensor = "torch.distributed.checkpoint.metadata.TensorStorageMetadata";
constexpr std::string_view kBytes = "torch.distributed.checkpoint.metadata.BytesStorageMetadata";
constexpr std::string_view kChunk = "torch.distributed.checkpoint.metadata.ChunkStorageMetadata";
constexpr std::string_view kProperties = "torch.distributed.checkpoint.metadata.TensorProperties";
constexpr std::string_view kOldProperties =  // up to torch 2.2
    "torch.distributed._shard.sharded_tensor.metadata.TensorProperties";
constexpr std::string_view kStorageInfo = "torch.distributed.checkpoint.filesystem._StorageInfo";

/// Whoever refers to one and the same text, list or dict from many places could make a small file
/// take long; so what may be shared is small.
constexpr size_t kMaxText = 4096, kMaxFields = 32;

const std::vector<std::string_view>& metadata_globals() {
  static const auto names = [] {
    std::vector<std::string_view> all{
        kMetadata, kIndex, kTensor, kBytes, kChunk, kProperties, kOldProperties, kStorageInfo,
        "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
        "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
        "torch.distributed.checkpoint.metadata.StorageMeta", "torch.Size",
        "torch.serialization._get_layout", "collections.OrderedDict",
        // The folder to which it was written, which nobody asks for.
        "pathlib.PosixPath", "pathlib.WindowsPath", "pathlib._local.PosixPath",
        "pathlib._local.WindowsPath"};
    for (const auto dtype : torch_dtype_names()) all.push_back(dtype);
    return all;
  }();
  return names;
}

/// Everything that is wrong is said with the file, and the name if there is one, in front.
template <typename... Args>
[[noreturn]] void refuse(const std::string& where, fmt::format_string<Args...> format,
                         Args&&... args) {
  user_error("{}: {}", where, fmt::format(format, std::forward<Args>(args)...));
}

std::string text_of(const std::string& where, const PickleValue& value, std::string_view what) {
  const auto* text = std::get_if<std::string_view>(&value);
  if (text == nullptr) refuse(where, "{}: expected text, got {}", what, describe(value));
  if (text->empty() || text->size() > kMaxText)
    refuse(where, "{}: expected text of 1 to {} bytes, got {}", what, kMaxText, text->size());
  return std::string(*text);
}

int64_t count_of(const std::string& where, const PickleValue& value, std::string_view what) {
  const auto* number = std::get_if<int64_t>(&value);
  if (number == nullptr || *number < 0)
    refuse(where, "{}: expected a whole number of 0 or more, got {}", what, describe(value));
  return *number;
}

std::vector<int64_t> dims_of(const std::string& where, const PickleValue& value,
                             std::string_view what) {
  auto sizes = sizes_of(value);
  if (!sizes) refuse(where, "{}: expected a torch.Size, got {}", what, describe(value));
  return *std::move(sizes);
}

/// The fields of an object of class `type`.
const PickleDict& fields_of(const std::string& where, const PickleValue& value,
                            std::string_view type) {
  const auto* object = object_of(value, type);
  const auto* fields = object == nullptr ? nullptr : dict_of(object->state);
  if (fields == nullptr) refuse(where, "expected a {}, got {}", type, describe(value));
  if (fields->items.size() > kMaxFields) refuse(where, "a {} with too many fields", type);
  return *fields;
}

const PickleValue& field(const std::string& where, const PickleDict& fields,
                         std::string_view name) {
  const auto* value = fields.find(name);
  if (value == nullptr) refuse(where, "{} is missing", name);
  return *value;
}

const PickleDict& dict_field(const std::string& where, const PickleDict& fields,
                             std::string_view name) {
  const auto& value = field(where, fields, name);
  const auto* dict = dict_of(value);
  if (dict == nullptr) refuse(where, "{}: expected a dict, got {}", name, describe(value));
  return *dict;
}

// ---- storage data ------------------------------------------------------------------------------

using Offsets = std::optional<std::vector<int64_t>>;  ///< of a chunk; none for other objects
using Pieces = std::map<Offsets, DcpPiece>;

/// A file of the folder, which its name must not leave.
size_t file_of(const std::string& where, const PickleDict& fields, DcpMetadata& metadata,
               std::map<std::string, size_t>& known) {
  const auto name = text_of(where, field(where, fields, "relative_path"), "relative_path");
  const auto [entry, is_new] = known.try_emplace(name, known.size());
  if (!is_new) return entry->second;
  const std::filesystem::path relative(name);
  const bool climbs = std::ranges::find(relative, std::filesystem::path("..")) != relative.end();
  if (relative.is_absolute() || climbs || name.find('\0') != std::string::npos) {
    refuse(where, "relative_path: expected a file in its own folder, got {}",
           nlohmann::json(name).dump());
  }
  metadata.files.push_back(name);
  return entry->second;
}

/// The bytes of each chunk, by the tensor's name.
std::map<std::string, Pieces, std::less<>> read_storage(const std::string& where,
                                                        const PickleDict& storage,
                                                        DcpMetadata& metadata) {
  std::map<std::string, Pieces, std::less<>> pieces;
  std::map<std::string, size_t> files;
  for (const auto& [key, value] : storage.items) {
    const auto& index = fields_of(where, key, kIndex);
    const auto name = text_of(where, field(where, index, "fqn"), "fqn");
    const auto& info = fields_of(where, value, kStorageInfo);
    const auto* transforms = info.find("transform_descriptors");
    if (transforms != nullptr && !std::holds_alternative<PickleNone>(*transforms))
      refuse(where, "its bytes were transformed by an extension of the writer; save without");
    const DcpPiece piece{.file = file_of(where, info, metadata, files),
                         .offset = count_of(where, field(where, info, "offset"), "offset"),
                         .length = count_of(where, field(where, info, "length"), "length")};
    const auto* offset = index.find("offset");
    Offsets offsets;
    if (offset != nullptr && !std::holds_alternative<PickleNone>(*offset))
      offsets = dims_of(where, *offset, "offset");
    if (!pieces[name].emplace(std::move(offsets), piece).second) {
      refuse(where, "storage_data: a chunk of {} stands twice in it", nlohmann::json(name).dump());
    }
  }
  return pieces;
}

// ---- tensors -----------------------------------------------------------------------------------

DType dtype_of(const std::string& where, const PickleValue& value) {
  const auto* object = object_of(value, kProperties);
  if (object == nullptr) object = object_of(value, kOldProperties);
  const auto* state =
      object == nullptr ? nullptr : std::get_if<const PickleSequence*>(&object->state);
  const auto* dtype = state == nullptr || (*state)->items.empty()
                          ? nullptr
                          : std::get_if<PickleGlobal>(&(*state)->items[0]);
  const auto known = dtype == nullptr ? std::nullopt : torch_dtype_named(dtype->name);
  if (!known) refuse(where, "properties: expected a known dtype, got {}", describe(value));
  return *known;
}

/// A zero does not excuse an overflow beside it.
void check_countable(const std::string& where, const TensorInfo& info) {
  int64_t bytes = dtype_bytes(info.dtype);
  for (const int64_t size : info.shape) {
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes))
      refuse(where, "its size overflows");
  }
}

DcpChunk read_chunk(const std::string& where, const PickleValue& value,
                    const std::vector<int64_t>& shape) {
  const auto& fields = fields_of(where, value, kChunk);
  DcpChunk chunk{.offsets = dims_of(where, field(where, fields, "offsets"), "offsets"),
                 .sizes = dims_of(where, field(where, fields, "sizes"), "sizes")};
  bool is_inside = chunk.offsets.size() == shape.size() && chunk.sizes.size() == shape.size();
  for (size_t dim = 0; is_inside && dim < shape.size(); ++dim) {
    is_inside =
        chunk.offsets[dim] <= shape[dim] && chunk.sizes[dim] <= shape[dim] - chunk.offsets[dim];
  }
  if (!is_inside) refuse(where, "a chunk reaches outside the tensor");
  return chunk;
}

DcpTensor read_tensor(const std::string& where, const PickleValue& value, const Pieces& pieces) {
  const auto& fields = fields_of(where, value, kTensor);
  DcpTensor tensor;
  tensor.info.dtype = dtype_of(where, field(where, fields, "properties"));
  tensor.info.shape = dims_of(where, field(where, fields, "size"), "size");
  check_countable(where, tensor.info);
  const auto& list = field(where, fields, "chunks");
  const auto* chunks = std::get_if<const PickleSequence*>(&list);
  if (chunks == nullptr) refuse(where, "chunks: expected a list, got {}", describe(list));
  if ((*chunks)->items.size() > pieces.size()) {
    refuse(where, "it has {} chunks, but storage_data knows the bytes of {}",
           (*chunks)->items.size(), pieces.size());
  }
  for (const auto& item : (*chunks)->items) {
    auto chunk = read_chunk(where, item, tensor.info.shape);
    const auto piece = pieces.find(chunk.offsets);
    if (piece == pieces.end()) refuse(where, "storage_data lacks the bytes of a chunk");
    tensor.pieces.push_back(piece->second);
    tensor.chunks.push_back(std::move(chunk));
  }
  const auto problem = tiling_problem(tensor.info.shape, tensor.chunks);
  if (!problem.empty()) refuse(where, "{}", problem);
  return tensor;
}

void read_entry(const std::string& path, const std::string& name, const PickleValue& value,
                const Pieces& pieces, DcpMetadata& metadata) {
  const auto where = fmt::format("{}: {}", path, nlohmann::json(name).dump());
  if (metadata.tensors.contains(name) || metadata.objects.contains(name))
    refuse(where, "stands twice in it");
  if (object_of(value, kBytes) == nullptr) {
    metadata.tensors.emplace(name, read_tensor(where, value, pieces));
    return;
  }
  const auto piece = pieces.find(std::nullopt);
  if (piece == pieces.end()) refuse(where, "storage_data lacks its bytes");
  metadata.objects.emplace(name, piece->second);
}

// ---- paths -------------------------------------------------------------------------------------

/// The keys of a path, if joined with dots they are the name; else none.
std::vector<std::string> keys_of(std::string_view name, const PickleSequence& path) {
  std::vector<std::string> keys;
  for (const auto& item : path.items) {
    if (!keys.empty()) {
      if (!name.starts_with('.')) return {};
      name.remove_prefix(1);
    }
    const auto* text = std::get_if<std::string_view>(&item);
    const auto* number = std::get_if<int64_t>(&item);
    if (text == nullptr && number == nullptr) return {};
    auto key = text != nullptr ? *text : std::string_view();
    const auto digits = number != nullptr ? std::to_string(*number) : "";
    if (number != nullptr) key = digits;
    if (key.empty() || !name.starts_with(key)) return {};
    keys.emplace_back(key);
    name.remove_prefix(key.size());
  }
  return name.empty() ? keys : std::vector<std::string>();
}

/// Reads the paths that the default planner keeps; what other planners keep is left alone.
void read_paths(const PickleValue* planner_data, DcpMetadata& metadata) {
  const auto* dict = planner_data == nullptr ? nullptr : dict_of(*planner_data);
  if (dict == nullptr) return;
  for (const auto& [key, value] : dict->items) {
    const auto* name = std::get_if<std::string_view>(&key);
    const auto* path = std::get_if<const PickleSequence*>(&value);
    if (name == nullptr || path == nullptr || name->size() > kMaxText) continue;
    auto keys = keys_of(*name, **path);
    if (!keys.empty()) metadata.paths[std::string(*name)] = std::move(keys);
  }
}

}  // namespace

DcpMetadata parse_dcp_metadata(const std::filesystem::path& path, std::string_view bytes) {
  const auto where = path.string();
  const Pickle pickle(where, bytes, metadata_globals());
  const auto& fields = fields_of(where, pickle.root(), kMetadata);
  DcpMetadata metadata;
  const auto pieces = read_storage(where, dict_field(where, fields, "storage_data"), metadata);
  const Pieces none;
  for (const auto& [key, value] : dict_field(where, fields, "state_dict_metadata").items) {
    const auto name = text_of(where, key, "the name of a tensor");
    const auto found = pieces.find(name);
    read_entry(where, name, value, found == pieces.end() ? none : found->second, metadata);
  }
  read_paths(fields.find("planner_data"), metadata);
  return metadata;
}

}  // namespace tessera::checkpoint
