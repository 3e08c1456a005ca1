// Tensors of stored sources under other names and dtypes, as one source.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/extent.h"
#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

/// Values are read from the sources, and converted, when asked for.
class SourceView : public TensorSource {
 public:
  /// `path`: for messages.
  explicit SourceView(std::filesystem::path path) : TensorSource(std::move(path)) {}

  /// What `source`, which outlives the view, calls `stored` is called `name` here; floats become
  /// `dtype` if one is given. UserError: no such tensor.
  void add(const std::string& name, const TensorSource& source, const std::string& stored,
           std::optional<DType> dtype = std::nullopt);

  /// Adds `stored`'s rows below those of `name`, or as it if there is none: [R, ..] and [S, ..] make
  /// [R + S, ..]. UserError: no such tensor, rows of another shape or dtype.
  void append_rows(const std::string& name, const TensorSource& source, const std::string& stored,
                   std::optional<DType> dtype = std::nullopt);

  /// `name` is `rows` of `stored`'s rows, from `first_row` on. A row is along the last dimension, of
  /// several others together; of a vector, a number. UserError: there are fewer, or not `all`.
  struct Rows {
    int64_t first_row = 0, rows = 0;
    int64_t all = 0;  ///< rows of `stored`; 0: whatever it has
  };
  void add_rows(const std::string& name, const TensorSource& source, const std::string& stored,
                const Rows& rows, std::optional<DType> dtype = std::nullopt);

  /// Gives a tensor another shape of as many elements. UserError: of another number.
  void reshape(const std::string& name, const std::vector<int64_t>& shape);

  /// Calls progress(bytes read so far, bytes of all tensors) after each read, from one thread.
  using Progress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;
  void report_reads(const Progress& progress);

 private:
  /// Elements of a stored tensor.
  struct Stored : Extent {
    const TensorSource* source;
    std::string name;
  };
  struct Origin {
    std::vector<Stored> stored;  ///< one after the other
    DType dtype;
  };

  void read_stored(const Origin& origin, int64_t begin, std::span<std::byte> destination) const;
  void read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                 std::span<std::byte> destination) const override;

  std::map<std::string, Origin, std::less<>> origins_;
  std::function<void(int64_t)> on_read_;
};

int64_t total_bytes(const TensorSource& source);  ///< of all its tensors

}  // namespace tessera::checkpoint
