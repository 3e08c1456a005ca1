// Stored tensors of whatever format stands at a path.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

enum class Format { tessera, safetensors, dcp, deepspeed, llmc, gguf };

struct OpenedSource {
  Format format;
  std::unique_ptr<TensorSource> tensors;
};

std::string_view format_name(Format format);  ///< for people

/// Recognises a checkpoint of ours, safetensors (a file, an index, a folder as Hugging Face has
/// it), a folder of torch.distributed.checkpoint or of DeepSpeed's universal checkpoints, a file
/// of llm.c, or a GGUF file. UserError: nothing there, none of these, several checkpoints, or what the format's
/// constructor refuses.
OpenedSource open_with_format(const std::filesystem::path& path);
std::unique_ptr<TensorSource> open_source(const std::filesystem::path& path);

/// Accelerate's folder of a run: model and optimizer in folders of torch.distributed.checkpoint.
struct DcpFolders {
  std::filesystem::path model, optimizer;  ///< optimizer: empty if there is none
};
std::optional<DcpFolders> dcp_folders(const std::filesystem::path& parent);

/// Is there something that is, or was to become, a checkpoint of ours?
bool is_checkpoint(const std::filesystem::path& folder);

/// The checkpoints of a run, whose folder or folder of checkpoints `path` is; empty if it is
/// neither.
std::vector<StepFolder> checkpoints_in(const std::filesystem::path& path);

}  // namespace tessera::checkpoint
