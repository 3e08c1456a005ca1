// Folders that torch.distributed.checkpoint wrote (FSDP, Accelerate, torchtitan), read without
// PyTorch. Nothing in them is executed (pickle.h).
//
//   FOLDER/.metadata       what there is (dcp_metadata.h)
//   FOLDER/__0_0.distcp    what rank 0 wrote: archives of torch.save, one after the other, or one
//   FOLDER/__1_0.distcp    safetensors file
//   ..
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/file.h"
#include "tessera/checkpoint/formats/dcp_metadata.h"
#include "tessera/checkpoint/formats/stored_training.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

/// The tensors of such a folder, under DCP's own names: the keys of the state dict, joined by dots
/// ("optimizer.state.lm_head.weight.exp_avg"). Single objects that are tensors or numbers are
/// tensors here, too: Python's floats F64, its ints I64, its bools BOOL, all without dims.
class DcpSource : public TensorSource {
 public:
  /// Maps the files, reads `.metadata` and the single objects. UserError, one line: a broken
  /// `.metadata`, a file that is missing or too short.
  explicit DcpSource(const std::filesystem::path& folder);

  /// The objects that are no tensors: what they are, or why they cannot be read, by name.
  const std::map<std::string, std::string, std::less<>>& objects() const { return objects_; }

  /// The keys that lead to a tensor in the state dict; its name alone if the writer kept none.
  std::vector<std::string> keys(const std::string& name) const;

 private:
  void open_files();
  void read_object(const std::string& name, const DcpPiece& piece);
  std::string_view bytes_of(const DcpPiece& piece) const;
  std::string where(const DcpPiece& piece) const;
  void read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                 std::span<std::byte> destination) const override;
  void read_chunk(const std::string& name, const DcpTensor& tensor, size_t chunk, int64_t begin,
                  std::span<std::byte> destination) const;

  DcpMetadata metadata_;
  std::vector<MappedFile> files_;                  ///< as metadata_.files
  std::map<size_t, SafetensorsFile> safetensors_;  ///< those of them that are such
  std::map<std::string, std::vector<std::byte>, std::less<>> values_;  ///< of single objects
  std::map<std::string, std::string, std::less<>> objects_;
};

/// Is there what DcpSource(folder) would open?
bool is_dcp(const std::filesystem::path& folder);

/// Sorts a folder's tensors: state.PARAMETER.STATE, below optimizer or not, is the optimizer's, whatever
/// it is nested in; of the others, those below a key "model" if there is one, else all, are
/// parameters, named by their last key. UserError: steps that differ between parameters.
StoredTraining stored_training(const DcpSource& source);

}  // namespace tessera::checkpoint
