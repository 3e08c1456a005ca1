#include "tessera/checkpoint/formats/dcp.h"

#include <fmt/ranges.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/formats/torch_archive.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr const char* kMetadataFile = ".metadata";

struct Value {
  TensorInfo info;
  std::vector<std::byte> bytes;
};

template <typename T>
Value scalar(DType dtype, T number) {
  Value value{.info = {.dtype = dtype}, .bytes = std::vector<std::byte>(sizeof(T))};
  std::memcpy(value.bytes.data(), &number, sizeof(T));
  return value;
}

/// A tensor or a number; nullopt for anything else.
std::optional<Value> value_of(const TorchArchive& archive) {
  const auto& root = archive.root();
  if (const auto* number = std::get_if<double>(&root)) return scalar(DType::f64, *number);
  if (const auto* number = std::get_if<int64_t>(&root)) return scalar(DType::i64, *number);
  if (const auto* flag = std::get_if<bool>(&root)) return scalar(DType::boolean, *flag);
  if (!TorchArchive::is_tensor(root)) return std::nullopt;
  const auto tensor = archive.tensor(root);
  Value value{tensor.info, std::vector<std::byte>(static_cast<size_t>(tensor.info.num_bytes()))};
  tensor.read(0, value.bytes);
  return value;
}

/// A file that begins with the length of a JSON header, not with an entry of a zip file.
bool looks_like_safetensors(std::string_view file) {
  return file.size() > 8 && file[8] == '{' && !file.starts_with("PK");
}

}  // namespace

DcpSource::DcpSource(const fs::path& folder)
    : TensorSource(folder),
      metadata_(parse_dcp_metadata(folder / kMetadataFile, read_file(folder / kMetadataFile))) {
  open_files();
  for (const auto& [name, tensor] : metadata_.tensors) tensors_.emplace(name, tensor.info);
  for (const auto& [name, piece] : metadata_.objects) read_object(name, piece);
}

void DcpSource::open_files() {
  for (const auto& name : metadata_.files) {
    if (!fs::is_regular_file(path_ / name)) {
      user_error("{}: names the file {}, which is missing", (path_ / kMetadataFile).string(),
                 nlohmann::json(name).dump());
    }
    files_.emplace_back(path_ / name);
    if (looks_like_safetensors(files_.back().text()))
      safetensors_.emplace(files_.size() - 1, path_ / name);
  }
  const auto check = [&](const DcpPiece& piece) {
    const auto size = static_cast<int64_t>(files_[piece.file].bytes().size());
    if (!safetensors_.contains(piece.file) &&
        (piece.offset > size || piece.length > size - piece.offset)) {
      user_error("{}: truncated: expected {} bytes at byte {}, got a file of {}",
                 files_[piece.file].path().string(), piece.length, piece.offset, size);
    }
  };
  for (const auto& [name, tensor] : metadata_.tensors) {
    for (const auto& piece : tensor.pieces) check(piece);
  }
  for (const auto& [name, piece] : metadata_.objects) check(piece);
}

std::string_view DcpSource::bytes_of(const DcpPiece& piece) const {
  return files_[piece.file].text().substr(static_cast<size_t>(piece.offset),
                                          static_cast<size_t>(piece.length));
}

std::string DcpSource::where(const DcpPiece& piece) const {
  return fmt::format("{}: what begins at byte {}", files_[piece.file].path().string(),
                     piece.offset);
}

void DcpSource::read_object(const std::string& name, const DcpPiece& piece) {
  if (safetensors_.contains(piece.file)) {
    objects_.emplace(name, "an object beside a safetensors file");
    return;
  }
  try {
    const TorchArchive archive(where(piece), bytes_of(piece));
    auto value = value_of(archive);
    if (!value) {
      objects_.emplace(name, describe(archive.root()));
      return;
    }
    tensors_.emplace(name, std::move(value->info));
    values_.emplace(name, std::move(value->bytes));
  } catch (const UserError& error) {
    // A data loader's state, say: its classes are not known here, and nobody may need it.
    objects_.emplace(name, error.what());
  }
}

void DcpSource::read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                          std::span<std::byte> destination) const {
  const auto single = values_.find(name);
  if (single != values_.end()) {
    std::memcpy(destination.data(), single->second.data() + begin * dtype_bytes(info.dtype),
                destination.size());
    return;
  }
  const auto& tensor = metadata_.tensors.find(name)->second;
  for (size_t chunk = 0; chunk < tensor.chunks.size(); ++chunk)
    read_chunk(name, tensor, chunk, begin, destination);
}

void DcpSource::read_chunk(const std::string& name, const DcpTensor& tensor, size_t chunk,
                           int64_t begin, std::span<std::byte> destination) const {
  const auto& piece = tensor.pieces[chunk];
  const TensorInfo expected{tensor.info.dtype, tensor.chunks[chunk].sizes};
  const auto refuse_other = [&](const TensorInfo& got) {
    if (got == expected) return;
    user_error("{}: expected {} of shape [{}] for {}, got {} of shape [{}]", where(piece),
               dtype_name(expected.dtype), fmt::join(expected.shape, ", "),
               nlohmann::json(name).dump(), dtype_name(got.dtype), fmt::join(got.shape, ", "));
  };
  const int64_t element = dtype_bytes(expected.dtype);
  const int64_t end = begin + static_cast<int64_t>(destination.size()) / element;
  const auto in_safetensors = safetensors_.find(piece.file);
  std::optional<TorchArchive> archive;  // opened when there is something to read
  std::optional<TorchTensor> stored;
  for_each_run(tensor.info.shape, tensor.chunks[chunk], begin, end, [&](const ChunkRun& run) {
    const auto part = destination.subspan(static_cast<size_t>((run.in_tensor - begin) * element),
                                          static_cast<size_t>(run.count * element));
    if (in_safetensors != safetensors_.end()) {
      refuse_other(in_safetensors->second.info(name));
      in_safetensors->second.read(name, run.in_chunk, part);
      return;
    }
    if (!stored) {
      archive.emplace(where(piece), bytes_of(piece));
      stored = archive->tensor(archive->root());
      refuse_other(stored->info);
    }
    stored->read(run.in_chunk, part);
  });
}

std::vector<std::string> DcpSource::keys(const std::string& name) const {
  const auto found = metadata_.paths.find(name);
  return found == metadata_.paths.end() ? std::vector{name} : found->second;
}

bool is_dcp(const fs::path& folder) { return fs::is_regular_file(folder / kMetadataFile); }

}  // namespace tessera::checkpoint
