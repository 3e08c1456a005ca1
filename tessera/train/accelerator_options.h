// What a program asks an Accelerator for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// In which type DDP's gradients travel; none: their own.
enum class CommHook { none, fp16, bf16 };

struct AcceleratorOptions {
  std::optional<std::string> mixed_precision;          ///< "no", "fp16", "bf16"; none: as launched
  std::optional<int64_t> gradient_accumulation_steps;  ///< none: as launched, else 1
  bool sync_with_loader = true;  ///< the last batch of a loader always updates
  /// How batches are divided over processes: see BatchShardOptions. Neither changes what
  /// `batch_size` means in the loader: rows per process, or with split_batches rows of all
  /// processes.
  bool split_batches = false, even_batches = true;
  /// Rank 0 alone reads, the others receive their rows: for data that only it can read.
  bool dispatch_batches = false;
  /// A loader's next pass after load_state() goes on where it was saved, by itself; false: the
  /// program calls skip_first_batches(). Its order is the saved one either way.
  bool use_stateful_dataloader = false;
  /// true: a prepared scheduler steps once for each process where the optimizer steps once, because
  /// one step took the rows of as many batches (not with split_batches): schedules written for one
  /// device keep their length in rows. false: once.
  bool step_scheduler_per_process = true;
  /// false: a prepared scheduler steps whenever it is told to.
  bool step_scheduler_with_optimizer = true;
  /// DDP: rank 0's buffers (running means) are sent before a forward.
  bool broadcast_buffers = true;
  CommHook comm_hook = CommHook::none;  ///< DDP
  uint64_t seed = 0;                    ///< of nn::Dropout
  /// Where init_trackers() sends what is logged: "tensorboard", "csv", "mlflow" (report/sink.h);
  /// "all": everywhere.
  std::vector<std::string> log_with = {"tensorboard"};
  /// save_state() without a folder writes project_dir/checkpoints/checkpoint_<0, 1, ..>, of which
  /// the newest `total_limit` stay; load_state() without one reads the newest.
  std::filesystem::path project_dir;
  bool automatic_checkpoint_naming = false;
  std::optional<int64_t> total_limit;
};

}  // namespace tessera
