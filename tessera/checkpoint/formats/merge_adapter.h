// An adapter added into the weights beside which it was trained.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/formats/family_names.h"
#include "tessera/checkpoint/source_view.h"
#include "tessera/models/adapter.h"

namespace tessera::checkpoint {

struct MergeOptions {
  bool subtracts =
      false;  ///< the base is merged already, and what comes out is what it was (LoRA alone)
  std::optional<DType> dtype;  ///< of what the adapter changes; none: as the base has it
};

/// The base's tensors with the adapter in them, in the dtypes that the base has: W + scale B A computed
/// in float32 and rounded once; of DoRA, m (W + scale B A) / ||W + scale B A|| by outputs; what was
/// trained whole is the adapter's. Values are computed when they are read, rows at a time. Memory: a
/// module's adapter, and a buffer. Cost: 2 rank operations for each element; DoRA reads weights twice.
class MergedSource : public TensorSource {
 public:
  /// The sources outlive it: `base` by our names, `trained` as models::trained_parameters names
  /// them. UserError: a tensor that is missing or of another shape; an adapter of a table that is the head,
  /// too; what was trained whole, or DoRA, cannot be subtracted.
  MergedSource(const TensorSource& base, const TensorSource& trained,
               const models::AdapterSpec& spec, const models::ModelShape& shape,
               const MergeOptions& options = {});

 private:
  /// What is added to a weight [rows, columns]: left [rows, rank] times right [rank, columns].
  struct Product {
    std::string name;
    int64_t rank = 0, columns = 0;
    std::vector<float> left, right;  // scaled
    std::vector<float> magnitudes;   // DoRA: of each output, divided by its norm
    bool outputs_are_columns = false;
  };

  void read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                 std::span<std::byte> destination) const override;
  void add_module(const models::AdaptedModule& module, models::AdapterType type);
  std::shared_ptr<const Product> product_of(const std::string& name) const;
  void take_norms(Product& product) const;
  std::vector<float> merged(const Product& product, int64_t begin, int64_t count) const;

  const TensorSource& base_;
  const TensorSource& trained_;
  double sign_ = 1;
  SourceView unchanged_;  // what the base has, and what was trained whole
  std::map<std::string, models::AdaptedModule> modules_;  // by their weight's name
  bool dora_ = false;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Product> last_;  // of the tensor that was read last
};

/// The same, which keeps its sources.
std::shared_ptr<const TensorSource> merged(std::shared_ptr<const TensorSource> base,
                                           std::shared_ptr<const TensorSource> trained,
                                           const models::AdapterSpec& spec,
                                           const models::ModelShape& shape,
                                           const MergeOptions& options = {});

/// Parameters that files fuse, as the tensors that files have. UserError: parts of other dtypes.
SourceView as_stored(const TensorSource& ours, const FamilyNames& family);

}  // namespace tessera::checkpoint
