// A run's figures as a table for spreadsheets and data frames: run_dir/metrics.csv (RFC 4180).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "tessera/report/sink.h"

namespace tessera::report {

/// The first line names the columns: step, then every figure in the order of its first appearance.
/// A row is what one call brought, other cells are empty; it stands in the file when the call
/// returns. A figure with a new name rewrites the file once. NaN and infinities are nan, inf and
/// -inf. A run that goes on keeps the rows of the steps that it keeps.
class CsvLog : public Sink {
 public:
  /// UserError: a file to go on with that is no such table.
  explicit CsvLog(const SinkOptions& options);
  void scalars(int64_t step, std::span<const Scalar> scalars) override;

 private:
  void keep_steps(int64_t last_step);
  /// Writes the file again, with `columns_` and the rows up to `last_step`.
  void rewrite(int64_t last_step);

  std::filesystem::path path_;
  std::vector<std::string> columns_;  ///< without step
};

}  // namespace tessera::report
