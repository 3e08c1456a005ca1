// DeepSpeed's universal checkpoints (deepspeed/checkpoint/ds_to_universal.py), read without
// PyTorch.
//
//   FOLDER/zero/PARAMETER/fp32.pt         archives of torch.save: {"param": tensor, ..};
//   FOLDER/zero/PARAMETER/exp_avg.pt ..   of ZeRO-3 a tensor alone, flat, for its shape is not kept here
//   FOLDER/zero/PARAMETER/step.pt         a tensor without dims or a number; not of ZeRO-3
#pragma once

#include <filesystem>

#include "tessera/checkpoint/formats/stored_training.h"
#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

/// The tensors of such a folder by file: "PARAMETER/fp32", "PARAMETER/exp_avg", "PARAMETER/step".
class DeepspeedUniversalSource : public TensorSource {
 public:
  /// Reads the directory and the pickle of each file. UserError: no such folder, a file that holds
  /// something else.
  explicit DeepspeedUniversalSource(const std::filesystem::path& folder);

 private:
  void add(const std::filesystem::path& file);
  void read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                 std::span<std::byte> destination) const override;
};

/// Is there what DeepspeedUniversalSource(folder) would open?
bool is_deepspeed_universal(const std::filesystem::path& folder);

/// Parameters (fp32) and states by name; UserError: steps that differ between parameters.
StoredTraining stored_training(const DeepspeedUniversalSource& source);

}  // namespace tessera::checkpoint
