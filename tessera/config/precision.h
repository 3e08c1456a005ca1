// Settings of precision that go together under a name.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/config/run_config.h"

namespace tessera::config {

/// Keys of the job file and their values, in the order of the keys: what each preset stands for. none: none.
/// fp16_amp: Micikevicius et al., ICLR 2018, as torch.amp; te: Transformer Engine's autocast;
/// msamp_o1, .. : FP8-LM (Peng et al., 2023) as MS-AMP's levels name it.
std::vector<std::pair<std::string, std::string>> values_of(PrecisionPreset preset);

/// Gives `loaded` what its preset stands for. UserError: a key that is set says otherwise.
void apply_preset(LoadedConfig& loaded);

/// Does an entry of precision.fp8_keep name the linear layer `path`? `at_end`: it is of the first or the last
/// block.
bool keeps_layer(const std::string& entry, const std::string& path, bool at_end);

/// Does fp8_keep name the layers that gain nothing (plan/fp8_layers.h)?
bool keeps_losers(const PrecisionSection& section);

/// What a run computes and keeps in, as FP8-LM's table has it: texts such as "fp8", "fp16", "none".
struct PrecisionRow {
  std::string gemm, communication, weight, master_weight, gradient, states;

  bool operator==(const PrecisionRow&) const = default;
};
PrecisionRow precision_row(const PrecisionSection& section);
/// "GEMM fp8, communication fp16, weight fp16, ..".
std::string row_text(const PrecisionRow& row);

/// What a checkpoint's state says of the run that wrote it; none: an earlier version did.
nlohmann::json to_json(const PrecisionRow& row);
std::optional<PrecisionRow> stored_precision(const nlohmann::json& state);
/// Where a run had numbers of 8 bits, what that means for the weights that it leaves; else "".
std::string weights_note(const PrecisionRow& row);

/// Bytes that a parameter of a linear layer in a block takes over all ranks of one copy: weight, its
/// master, gradient, states.
double bytes_per_parameter(const PrecisionSection& section);

}  // namespace tessera::config
