#include "tessera/checkpoint/formats/deepspeed.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/formats/torch_archive.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr const char* kFolder = "zero";
constexpr const char* kSuffix = ".pt";

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(folder)) entries.push_back(entry.path());
  std::ranges::sort(entries);
  return entries;
}

/// {"param": tensor, ..} or a tensor.
const PickleValue& tensor_in(const TorchArchive& archive) {
  const auto* dict = dict_of(archive.root());
  const auto* param = dict == nullptr ? nullptr : dict->find("param");
  return param == nullptr ? archive.root() : *param;
}

/// "PARAMETER/STATE" of FOLDER/zero/PARAMETER/STATE.pt
std::string name_of(const fs::path& file) {
  return (file.parent_path().filename() / file.stem()).string();
}

}  // namespace

DeepspeedUniversalSource::DeepspeedUniversalSource(const fs::path& folder) : TensorSource(folder) {
  if (!is_deepspeed_universal(folder)) {
    user_error(
        "{}: expected a universal checkpoint of DeepSpeed, a folder with {}/PARAMETER/fp32{}",
        folder.string(), kFolder, kSuffix);
  }
  for (const auto& parameter : entries_of(folder / kFolder)) {
    if (!fs::is_directory(parameter)) continue;  // optimizer_state.pt
    for (const auto& file : entries_of(parameter)) {
      if (file.extension() == kSuffix) add(file);
    }
  }
}

void DeepspeedUniversalSource::add(const fs::path& file) {
  const MappedFile mapped(file);
  const TorchArchive archive(file.string(), mapped.text());
  const auto& value = tensor_in(archive);
  const bool is_number =
      std::holds_alternative<int64_t>(value) || std::holds_alternative<double>(value);
  auto info = is_number ? TensorInfo{.dtype = DType::f64} : archive.tensor(value).info;
  tensors_.emplace(name_of(file), std::move(info));
}

void DeepspeedUniversalSource::read_part(const std::string& name, const TensorInfo& info,
                                         int64_t begin, std::span<std::byte> destination) const {
  const auto file = path_ / kFolder / (name + kSuffix);
  const MappedFile mapped(file);
  const TorchArchive archive(file.string(), mapped.text());
  const auto& value = tensor_in(archive);
  if (TorchArchive::is_tensor(value)) {
    const auto tensor = archive.tensor(value);
    if (tensor.info != info) user_error("{}: changed while it was read", file.string());
    tensor.read(begin, destination);
    return;
  }
  const auto* whole = std::get_if<int64_t>(&value);
  const auto* real = std::get_if<double>(&value);
  if (whole == nullptr && real == nullptr)
    user_error("{}: changed while it was read", file.string());
  const double number = whole != nullptr ? static_cast<double>(*whole) : *real;
  std::memcpy(destination.data(), &number, sizeof(number));
}

bool is_deepspeed_universal(const fs::path& folder) { return fs::is_directory(folder / kFolder); }

StoredTraining stored_training(const DeepspeedUniversalSource& source) {
  StoredTraining training;
  for (const auto& [name, info] : source.tensors()) {
    const size_t slash = name.rfind('/');
    const auto parameter = name.substr(0, slash), state = name.substr(slash + 1);
    auto& names = state == "fp32" ? training.parameters : training.states[state];
    names[parameter] = name;
  }
  take_step(source, training);
  return training;
}

}  // namespace tessera::checkpoint
