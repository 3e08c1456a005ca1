// What is kept elsewhere than where a rank computes.
#pragma once

#include <array>
#include <string_view>

#include "tessera/base/texts.h"

namespace tessera::parallel {

/// Where slices live: on the device, on its host, or on drives (the step is on the host then).
enum class OffloadParams { none, host, nvme };

/// Where reduced gradients wait for the step: with what they belong to, or on drives.
enum class OffloadGradients { none, nvme };

/// What of a unit lies on drives, each with what comes before it. States are the optimizer's; masters
/// are slices in another type than that in which gathers take them.
enum class OnDrives { nothing, states, masters, parameters };

}  // namespace tessera::parallel

namespace tessera::memory {

/// Where what checkpointed blocks keep waits for their backward: on the device, on its host, or on drives.
enum class OffloadActivations { none, host, nvme };

}  // namespace tessera::memory

template <>
inline constexpr auto tessera::kTexts<tessera::parallel::OffloadParams> =
    std::to_array<std::string_view>({"false", "true", "nvme"});
template <>
inline constexpr auto tessera::kTexts<tessera::parallel::OffloadGradients> =
    std::to_array<std::string_view>({"false", "nvme"});
template <>
inline constexpr auto tessera::kTexts<tessera::memory::OffloadActivations> =
    std::to_array<std::string_view>({"false", "true", "nvme"});
