// What this machine can reach at most: the yardstick of model FLOPs utilisation (MFU).
#pragma once

namespace tessera::train {

/// Floating-point operations per second of fp32 (or bf16) matrix products [1024 x 1024] x [1024 x 1024] in
/// this process with its threads: the best of a few runs, some 0.1 s. Ranks that share a machine
/// should measure at the same time.
double matmul_peak(bool bf16 = false);

}  // namespace tessera::train
