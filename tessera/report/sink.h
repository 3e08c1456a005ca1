// What is measured, and the places where it goes.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tessera::report {

/// A further figure of what a run learns.
struct Figure {
  std::string tag;  ///< "rewards/margins"
  double value = 0;
  std::string shown;  ///< its name in the progress line; "": it is not there
};

/// Those that have a name in a line: "acc 0.75", behind `before`.
std::vector<std::string> shown_figures(const std::vector<Figure>& figures,
                                       const std::string& before = "");

/// How many choices of a step's tokens fell on each expert of a layer.
struct ExpertLoad {
  int64_t layer = 0;
  std::vector<int64_t> tokens;  ///< by expert
  double entropy = 0;           ///< of the router's probabilities, the mean of tokens; 1: all alike
  /// The share of choices for which experts had no room; unset: none is ever dropped.
  std::optional<double> dropped = {};

  /// MaxVio: how much the fullest expert is above the mean, in means (Wang et al., 2024); 0: even.
  double max_violation() const;
};

/// What rounding to 8 bits did to the numbers of a layer's products.
struct Fp8Rounding {
  static constexpr std::array<std::string_view, 3> kOperands{"input", "weight", "gradient"};
  struct Operand {
    double amax = 0, scale = 0;          ///< the largest magnitude, and what that was multiplied by
    double underflow = 0, overflow = 0;  ///< shares that became zero, and the type's largest
    double lost() const { return underflow + overflow; }
  };

  int64_t layer = 0;  ///< block of the model
  std::string path;   ///< "model.layers.0.mlp.up_proj"
  std::array<Operand, 3> operands;
};

/// One optimizer step as the whole run saw it (losses and token counts over all ranks, times and
/// memory of the writer).
struct StepRecord {
  int64_t step = 0;  ///< 1 for the first
  double loss = 0;   ///< mean over valid tokens, in nats, or over pairs
  double grad_norm = 0;
  double learning_rate = 0;
  double step_seconds = 0;
  double tokens_per_second = 0;
  double mfu = -1;  ///< share of the peak of matrix products, 0..1; below 0: unknown
  double communication_wait_seconds = 0;          ///< of step_seconds
  std::optional<double> drive_wait_seconds = {};  ///< likewise, where something is on drives
  int64_t tokens_seen = 0;                        ///< since the first step of the run
  int64_t memory_bytes = 0;
  std::optional<double> validation_loss;
  std::vector<Figure> figures = {}, validation_figures = {};
  std::vector<ExpertLoad> experts = {};  ///< of layers that are mixtures
  std::vector<Fp8Rounding> fp8 = {};  ///< of layers that multiply in 8 bits, where it was counted
};

struct Scalar {
  std::string tag;
  double value = 0;
};

/// train/{loss,grad_norm,learning_rate,tokens_seen}, speed/{step_seconds,tokens_per_second,
/// communication_wait_seconds}, memory/bytes and, where they are known, speed/{mfu,drive_wait_seconds}, validation/loss,
/// and figures by their tags, those of a validation behind validation/.
std::vector<Scalar> scalars_of(const StepRecord& record);

using HyperParameter = std::variant<bool, double, std::string>;
using HyperParameters = std::map<std::string, HyperParameter>;

/// A place for a run's figures: a screen, a log, another program's files. Rank 0 alone has some.
/// What cannot be written is a SystemError.
class Sink {
 public:
  virtual ~Sink() = default;
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  /// What the run was asked for: once, before its first figure.
  virtual void hyper_parameters(const HyperParameters& /*values*/) {}
  virtual void scalars(int64_t /*step*/, std::span<const Scalar> /*scalars*/) {}
  virtual void step(const StepRecord& record) { scalars(record.step, scalars_of(record)); }
  /// How the run ended: once, after its last figure. Without, it is shown as running.
  virtual void finish(bool /*success*/) {}

 protected:
  Sink() = default;
};

struct SinkOptions {
  std::filesystem::path run_dir;  ///< made if it is missing
  int64_t steps_done = 0;  ///< of the run that this one goes on from: later figures are dropped
};

std::vector<std::string> sink_names();

/// Makes a sink by its name, as in logging.report_to and log_with: "tensorboard", "csv", "mlflow".
/// UserError: another name. SystemError: what cannot be written.
std::unique_ptr<Sink> make_sink(std::string_view name, const SinkOptions& options);

}  // namespace tessera::report
