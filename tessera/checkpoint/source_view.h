// Tensors of stored sources under other names and dtypes, as one source.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/strided.h"
#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

/// Values are read from the sources, and converted, when asked for. Memory: a few MB; where elements lie
/// apart and too few are asked for at a time, the last two such parts (strided.h).
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

  /// `name` is a part of `stored`. UserError: no such tensor, or another shape than `part.of`.
  void add_part(const std::string& name, const TensorSource& source, const std::string& stored,
                const Strided& part, std::optional<DType> dtype = std::nullopt);

  /// `stored`, of shape `part.shape`, becomes a part of `name`. Before `name` is read, all of it must
  /// be put. UserError: no such tensor, another shape, another dtype than that of the other parts.
  void put_part(const std::string& name, const TensorSource& source, const std::string& stored,
                const Strided& part, std::optional<DType> dtype = std::nullopt);

  /// `name` is `rows` of `stored`'s rows, from `first_row` on. A row is along the last dimension, of
  /// several others together; of a vector, a number. UserError: there are fewer.
  struct Rows {
    int64_t first_row = 0, rows = 0;
  };
  void add_rows(const std::string& name, const TensorSource& source, const std::string& stored,
                const Rows& rows, std::optional<DType> dtype = std::nullopt);

  /// Gives a tensor another shape of as many elements. UserError: of another number.
  void reshape(const std::string& name, const std::vector<int64_t>& shape);

  /// Calls progress(bytes read so far, bytes of all tensors) after each read, from one thread.
  using Progress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;
  void report_reads(const Progress& progress);

 private:
  /// Elements of a stored tensor, and where they come.
  struct Piece {
    const TensorSource* source;
    std::string name;
    Walk walk;
  };
  struct Origin {
    std::vector<Piece> pieces;
    DType dtype;
  };

  void read_pieces(const Origin& origin, int64_t begin, std::span<std::byte> destination) const;
  void read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                 std::span<std::byte> destination) const override;

  std::shared_ptr<KeptWalks> kept_ = std::make_shared<KeptWalks>();
  std::map<std::string, Origin, std::less<>> origins_;
  std::function<void(int64_t)> on_read_;
};

int64_t total_bytes(const TensorSource& source);  ///< of all its tensors

}  // namespace tessera::checkpoint
