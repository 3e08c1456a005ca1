// What a user chooses by name, in a job file or in code: each choice is one enum, known to the
// settings (config/) and to the part that carries it out, with its texts beside it. An enum stands
// in the namespace of the part that carries it out.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <variant>

#include "tessera/base/texts.h"

namespace tessera {

/// Types of numbers that a run computes with, keeps or reduces in.
enum class FloatType { fp32, bf16, fp16 };
template <>
inline constexpr auto kTexts<FloatType> = std::to_array<std::string_view>({"fp32", "bf16", "fp16"});

constexpr int64_t bytes_of(FloatType type) { return type == FloatType::fp32 ? 4 : 2; }

}  // namespace tessera

namespace tessera::models {

/// First weights: drawn from (seed, name, position), or read.
enum class Init { random, pretrained };

/// What is trained beside a frozen model (models/adapter.h).
enum class AdapterType {
  none,  ///< nothing: the model itself is trained
  lora,  ///< two thin matrices beside a matrix (Hu et al., ICLR 2022)
  dora   ///< and a magnitude for each of its outputs (Liu et al., ICML 2024)
};

/// Which biases of the model are trained beside an adapter: none, all, or those of adapted modules.
enum class AdapterBias { none, all, lora_only };

/// First values of an adapter. But for pissa, B A is zero at first, and so is B but for orthogonal; an
/// embedding's A is zero and its B normal, whatever this says.
enum class AdapterInit {
  kaiming,     ///< A uniform within 1 / sqrt(inputs)
  gaussian,    ///< A normal, of deviation 1 / rank
  orthogonal,  ///< A and B of random rows that are orthogonal to each other, so that B A is zero
  pissa  ///< the largest singular values of the matrix, whose rest is the base (train/pissa.h)
};

/// How PEFT's files have adapters of a mixture's experts.
enum class ExpertFormat {
  fused,      ///< of the tensors that hold all experts of a layer (target_parameters)
  per_expert  ///< of each expert's matrices (target_modules)
};

}  // namespace tessera::models

template <>
inline constexpr auto tessera::kTexts<tessera::models::Init> =
    std::to_array<std::string_view>({"random", "pretrained"});
template <>
inline constexpr auto tessera::kTexts<tessera::models::AdapterType> =
    std::to_array<std::string_view>({"none", "lora", "dora"});
template <>
inline constexpr auto tessera::kTexts<tessera::models::AdapterBias> =
    std::to_array<std::string_view>({"none", "all", "lora_only"});
template <>
inline constexpr auto tessera::kTexts<tessera::models::AdapterInit> =
    std::to_array<std::string_view>({"kaiming", "gaussian", "orthogonal", "pissa"});
template <>
inline constexpr auto tessera::kTexts<tessera::models::ExpertFormat> =
    std::to_array<std::string_view>({"fused", "per_expert"});

namespace tessera::data {

/// automatic, for a file: Megatron if an .idx stands beside it, tokens if it ends in .bin, else
/// text. automatic, for a folder: tokens if every file in it ends in .bin or .idx, else text.
/// records: rows of data sets (JSON lines, ..); automatic takes all paths for such if the names of their files say so.
enum class DataFormat { automatic, tokens, megatron, text, records };

/// What a row of a data set has to learn from; automatic: by its keys.
enum class RowShape {
  automatic,
  text,               ///< text
  prompt_completion,  ///< prompt, completion: texts, or messages
  messages,           ///< messages of {role, content}, tools
  conversations,      ///< ShareGPT: conversations of {from, value}, system, tools
  alpaca,             ///< instruction, input, output, system, history
  preference          ///< chosen, rejected, prompt: texts, or messages; tools
};

/// Which tokens of a row are learned.
enum class Learn {
  assistant,  ///< what the assistant says, with the end of its turns; completions; whole texts
  last,       ///< of it, the last answer
  marked,     ///< of it, messages with "train": true, or "weight" above 0
  all         ///< every token
};

/// What becomes of a row with more tokens than seq_len.
enum class TooLong { cut, drop, error };

/// What the user says about a token file without a header (automatic: uint16); with a header it must
/// agree with it.
enum class TokenDtype { automatic, uint16, uint32 };

}  // namespace tessera::data

template <>
inline constexpr auto tessera::kTexts<tessera::data::DataFormat> =
    std::to_array<std::string_view>({"auto", "tokens", "megatron", "text", "records"});
template <>
inline constexpr auto tessera::kTexts<tessera::data::RowShape> = std::to_array<std::string_view>(
    {"auto", "text", "prompt_completion", "messages", "conversations", "alpaca", "preference"});
template <>
inline constexpr auto tessera::kTexts<tessera::data::Learn> =
    std::to_array<std::string_view>({"assistant", "last", "marked", "all"});
template <>
inline constexpr auto tessera::kTexts<tessera::data::TooLong> =
    std::to_array<std::string_view>({"cut", "drop", "error"});
template <>
inline constexpr auto tessera::kTexts<tessera::data::TokenDtype> =
    std::to_array<std::string_view>({"auto", "uint16", "uint32"});

namespace tessera::optim {

enum class OptimizerType {
  adamw,      ///< Loshchilov and Hutter, ICLR 2019
  adamw8bit,  ///< the same with states of 8 bits (Dettmers et al., ICLR 2022)
  sgd,        ///< with momentum
  lion,  ///< signs of a mean gradient (Chen et al., Symbolic Discovery of Optimization .., 2023)
  muon   ///< orthogonal updates of whole matrices (Jordan et al., 2024); adamw for all else
};

/// How an optimizer updates the numbers of a parameter.
enum class Treatment {
  matrices,  ///< all of a matrix together (muon)
  blocks,    ///< each alone, but states of kStateBlock neighbours share a scale (adamw8bit)
  elements   ///< each alone
};

/// Numbers of a parameter, counted from its first one, whose states of 8 bits share a scale.
constexpr int64_t kStateBlock = 256;

/// What an optimizer's treatment of a whole parameter depends on.
struct ParameterFacts {
  bool matrix_of_block = false;  ///< of a transformer block
  bool of_embedding = false;     ///< a table that is looked up, tied or not
  int64_t num_elements = 0;
};

/// Embeddings and small parameters keep states of 32 bits beside adamw8bit, as bitsandbytes has it
/// (min_8bit_size): rows that are seldom looked up have gradients of another size.
constexpr Treatment treatment_of(OptimizerType type, const ParameterFacts& parameter) {
  constexpr int64_t kFewestIn8Bits = 4096;
  if (type == OptimizerType::muon && parameter.matrix_of_block) return Treatment::matrices;
  const bool small = parameter.of_embedding || parameter.num_elements < kFewestIn8Bits;
  if (type == OptimizerType::adamw8bit && !small) return Treatment::blocks;
  return Treatment::elements;
}

/// How many numbers an optimizer keeps for each one it updates.
constexpr int num_states(OptimizerType type, Treatment treatment, double momentum) {
  switch (type) {
    case OptimizerType::adamw:
    case OptimizerType::adamw8bit:
      return 2;
    case OptimizerType::sgd:
      return momentum == 0 ? 0 : 1;
    case OptimizerType::lion:
      return 1;
    case OptimizerType::muon:
      return treatment == Treatment::matrices ? 1 : 2;
  }
  __builtin_unreachable();
}

/// Bytes that an optimizer keeps for each number it updates, if those of other than 8 bits have
/// `number_bytes`.
constexpr double state_bytes(OptimizerType type, Treatment treatment, double momentum,
                             int64_t number_bytes) {
  const double each = treatment == Treatment::blocks ? 1 + 4.0 / static_cast<double>(kStateBlock)
                                                     : static_cast<double>(number_bytes);
  return num_states(type, treatment, momentum) * each;
}

/// How large muon's update of a matrix [rows, columns] is (torch.optim.Muon's adjust_lr_fn).
enum class MuonScale {
  original,         ///< times max(1, rows / columns)^0.5
  match_rms_adamw,  ///< times 0.2 max(rows, columns)^0.5: as large as AdamW's, whose rates serve
};

/// How the learning rate changes after warm-up (optim/learning_rate.h).
enum class LearningRateSchedule { constant, linear, cosine, wsd };

}  // namespace tessera::optim

template <>
inline constexpr auto tessera::kTexts<tessera::optim::OptimizerType> =
    std::to_array<std::string_view>({"adamw", "adamw8bit", "sgd", "lion", "muon"});
template <>
inline constexpr auto tessera::kTexts<tessera::optim::MuonScale> =
    std::to_array<std::string_view>({"original", "match_rms_adamw"});
template <>
inline constexpr auto tessera::kTexts<tessera::optim::LearningRateSchedule> =
    std::to_array<std::string_view>({"constant", "linear", "cosine", "wsd"});

namespace tessera::parallel {

/// What each of N ranks keeps of a unit's P parameters. Elements beside the optimizer's state:
///                     parameters   gradients   optimizer   sent per rank and step
///   replicate         P            P           P           2 P  (DDP; Li et al., VLDB 2020)
///   shard_optimizer   P            P           P/N         2 P  (ZeRO-1; Rajbhandari et al., SC 2020)
///   shard_gradients   P            P/N         P/N         2 P  (ZeRO-2, FSDP's SHARD_GRAD_OP)
///   full_shard        P/N          P/N         P/N         3 P  (ZeRO-3, FSDP)
/// times (N-1)/N each. Whole parameters and gradients of single units come and go beside that.
enum class Placement { replicate, shard_optimizer, shard_gradients, full_shard };

/// Is there a rank that has a part of the optimizer's state alone?
constexpr bool is_sharded(Placement placement) { return placement != Placement::replicate; }

/// Whole gradients are freed after each backward, so each micro-batch's are reduced; other
/// placements keep them to the last.
constexpr bool frees_gradients(Placement placement) {
  return placement == Placement::shard_gradients || placement == Placement::full_shard;
}

/// Where the optimizer's states live: beside the parameters, on the host, or on drives (the step is on
/// the host then).
enum class OffloadOptimizer { none, host, nvme };

/// When the next unit of a backward is gathered: before the gradients of the present one are
/// computed (more overlap, one more unit in memory), after, or when it is needed.
enum class BackwardPrefetch { pre, post, none };

/// full_shard: whether a unit's whole parameters are freed between forward and backward; k: down to
/// 1/k of them, shared by k neighbouring ranks.
using ReshardAfterForward = std::variant<bool, int>;

/// Are they freed, wholly or in part?
constexpr bool reshards(const ReshardAfterForward& choice) {
  return choice != ReshardAfterForward(false);
}

/// What a job makes a unit of: each block, the innermost modules of a size, those with a name, or
/// the whole model.
enum class Units { block, size, name, model };

/// What the stages of a pipeline share evenly: operations, layers, or seconds taken at the start.
enum class StageBalance { cost, layers, measured };

}  // namespace tessera::parallel

template <>
inline constexpr auto tessera::kTexts<tessera::parallel::Placement> =
    std::to_array<std::string_view>({"replicate", "shard_optimizer", "shard_gradients",
                                     "full_shard"});
template <>
inline constexpr auto tessera::kTexts<tessera::parallel::OffloadOptimizer> =
    std::to_array<std::string_view>({"false", "true", "nvme"});
template <>
inline constexpr auto tessera::kTexts<tessera::parallel::BackwardPrefetch> =
    std::to_array<std::string_view>({"pre", "post", "none"});
template <>
inline constexpr auto tessera::kTexts<tessera::parallel::Units> =
    std::to_array<std::string_view>({"block", "size", "name", "model"});
template <>
inline constexpr auto tessera::kTexts<tessera::parallel::StageBalance> =
    std::to_array<std::string_view>({"cost", "layers", "measured"});

namespace tessera::comm {

enum class BackendChoice {
  automatic,  ///< NCCL if every rank of this machine has a GPU to itself, else Gloo on the CPU
  gloo,
  nccl
};

}  // namespace tessera::comm

template <>
inline constexpr auto tessera::kTexts<tessera::comm::BackendChoice> =
    std::to_array<std::string_view>({"auto", "gloo", "nccl"});

namespace tessera::memory {

/// What a module keeps between its forward and its backward.
enum class CheckpointMode {
  none,  ///< all that autograd saves
  full,  ///< its inputs; backward runs the forward again
  feed_forward,  ///< its inputs and the results of matrix products and attention up to the product behind that;
                 ///< backward runs the feed-forward again, and what is cheap
  selective,  ///< its inputs and the results of matrix products and attention (kernels/linear.h,
              ///< attention.h); backward runs only the rest again: norms, rotary, activations, sums
};

}  // namespace tessera::memory

template <>
inline constexpr auto tessera::kTexts<tessera::memory::CheckpointMode> =
    std::to_array<std::string_view>({"none", "full", "feed_forward", "selective"});

namespace tessera::checkpoint {

/// What is read back before a checkpoint counts: nothing, sizes of files, all bytes.
enum class Verify { off, sizes, full };

}  // namespace tessera::checkpoint

template <>
inline constexpr auto tessera::kTexts<tessera::checkpoint::Verify> =
    std::to_array<std::string_view>({"off", "sizes", "full"});

namespace tessera::train {

/// What is learned of pairs of a chosen and a rejected answer.
enum class PreferenceLoss {
  none,     ///< there are no pairs: cross-entropy of each token
  sigmoid,  ///< DPO (Rafailov et al., NeurIPS 2023)
  ipo,      ///< Azar et al., AISTATS 2024, with log-probabilities by length
  orpo      ///< Hong et al., EMNLP 2024: odds ratio beside cross-entropy, without a reference
};

/// Is the model compared with what it was at the start?
constexpr bool has_reference(PreferenceLoss loss) {
  return loss == PreferenceLoss::sigmoid || loss == PreferenceLoss::ipo;
}

/// What follows on NaN or infinity in loss or gradients.
enum class Nonfinite { stop, skip };

}  // namespace tessera::train

template <>
inline constexpr auto tessera::kTexts<tessera::train::PreferenceLoss> =
    std::to_array<std::string_view>({"none", "sigmoid", "ipo", "orpo"});
template <>
inline constexpr auto tessera::kTexts<tessera::train::Nonfinite> =
    std::to_array<std::string_view>({"stop", "skip"});

namespace tessera::report {

enum class ProgressMode {
  automatic,  ///< line if the file descriptor is a terminal (and TERM is not "dumb"), else plain
  line,       ///< one line, rewritten at every step
  plain,      ///< a line every `every` steps, and for the first and the last step
  none,       ///< messages only
};

}  // namespace tessera::report

template <>
inline constexpr auto tessera::kTexts<tessera::report::ProgressMode> =
    std::to_array<std::string_view>({"auto", "line", "plain", "none"});
