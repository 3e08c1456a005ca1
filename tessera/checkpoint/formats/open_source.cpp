#include "tessera/checkpoint/formats/open_source.h"

#include <array>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/formats/bitsandbytes.h"
#include "tessera/checkpoint/formats/dcp.h"
#include "tessera/checkpoint/formats/deepspeed.h"
#include "tessera/checkpoint/formats/gguf/file.h"
#include "tessera/checkpoint/formats/llmc.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/shard.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

template <typename Source>
std::unique_ptr<TensorSource> open_as(const fs::path& path) {
  return std::make_unique<Source>(path);
}

struct Kind {
  Format format;
  std::string_view name;
  bool (*is_at)(const fs::path& path);
  std::unique_ptr<TensorSource> (*open)(const fs::path& path);
};

// What is known of each format, in the order of Format.
constexpr std::array kKinds{
    Kind{Format::tessera, "Tessera checkpoint", is_checkpoint, open_as<Checkpoint>},
    Kind{Format::safetensors, "safetensors", is_safetensors, open_safetensors},
    Kind{Format::dcp, "torch.distributed.checkpoint", is_dcp, open_as<DcpSource>},
    Kind{Format::deepspeed, "DeepSpeed universal checkpoint", is_deepspeed_universal,
         open_as<DeepspeedUniversalSource>},
    Kind{Format::llmc, "llm.c checkpoint", is_llmc, open_as<LlmcSource>},
    Kind{Format::gguf, "GGUF", is_gguf, open_as<GgufSource>}};

[[noreturn]] void refuse(const fs::path& path) {
  if (!fs::exists(path)) user_error("{}: no such file or folder", path.string());
  const auto steps = checkpoints_in(path);
  if (!steps.empty()) {
    user_error("{}: expected one checkpoint, got a folder of {}; name one, the last is {}",
               path.string(), steps.size(), steps.back().path.string());
  }
  if (const auto folders = dcp_folders(path)) {
    user_error("{}: expected one folder of torch.distributed.checkpoint, got two; name one, as {}",
               path.string(), folders->model.string());
  }
  if (fs::exists(path / "config.yaml")) {
    user_error(
        "{}: a run with no checkpoints in it; name the folder where it keeps them, if its "
        "config.yaml says another one, or a checkpoint",
        path.string());
  }
  user_error(
      "{}: no checkpoint; expected a folder with {}, model.safetensors, .metadata "
      "(torch.distributed.checkpoint) or zero/ (DeepSpeed universal), a .safetensors or "
      ".gguf file, or llm.c's .bin",
      path.string(), kMarkerFile);
}

}  // namespace

std::string_view format_name(Format format) { return kKinds[static_cast<size_t>(format)].name; }

OpenedSource open_with_format(const fs::path& path) {
  for (const auto& kind : kKinds) {
    if (fs::exists(path) && kind.is_at(path)) return {kind.format, kind.open(path)};
  }
  refuse(path);
}

std::unique_ptr<TensorSource> open_source(const fs::path& path) {
  return open_with_format(path).tensors;
}

std::optional<DcpFolders> dcp_folders(const fs::path& parent) {
  const auto model = parent / "pytorch_model_fsdp_0", optimizer = parent / "optimizer_0";
  if (!is_dcp(model)) return std::nullopt;
  return DcpFolders{model, is_dcp(optimizer) ? optimizer : fs::path()};
}

bool is_checkpoint(const fs::path& folder) {
  return fs::exists(folder / kMarkerFile) || fs::exists(folder / kIndexFile) ||
         fs::exists(folder / shard_name(0));
}

std::vector<StepFolder> checkpoints_in(const fs::path& path) {
  auto found = step_folders(path);
  return found.empty() ? step_folders(path / "checkpoints") : found;
}

}  // namespace tessera::checkpoint
