// A run as MLflow's file store keeps one, without MLflow: run_dir/mlruns/, which
// `mlflow ui --backend-store-uri RUN_DIR/mlruns` shows. Format:
// mlflow/store/tracking/file_store.py, read by MLflow 2 and 3.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "tessera/report/sink.h"

namespace tessera::report {

/// One run, named like the run's folder, in the experiment Default. A figure is a line of the file
/// metrics/NAME, in place when the call returns. A run that goes on is the same run, without the
/// figures of the steps that it does again. Letters that MLflow does not take in names are _.
class MlflowRun : public Sink {
 public:
  explicit MlflowRun(const SinkOptions& options);
  void hyper_parameters(const HyperParameters& values) override;
  void scalars(int64_t step, std::span<const Scalar> scalars) override;
  void finish(bool success) override;

 private:
  /// Where a figure or parameter of this name stands; its folder is made.
  std::filesystem::path place(const char* kind, const std::string& name) const;
  /// `status`: 1: running, 3: finished, 4: failed.
  void write_meta(int status, int64_t end_time);
  void keep_steps(int64_t last_step) const;

  std::filesystem::path folder_;  ///< of the run
  std::string name_;
  int64_t start_time_ = 0;  ///< in ms since 1970, as all of MLflow's
};

}  // namespace tessera::report
