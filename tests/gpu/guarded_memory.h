// Memory for tensors that ends where a page without access begins, so that a kernel which reads or
// writes beyond a tensor's end is found.
#pragma once

namespace tessera::testing {

/// From now on every CPU tensor of the process lies in such memory, at a multiple of 16 bytes, filled
/// with NaNs. Up to 15 bytes behind its end can be read unseen; that nobody wrote them is checked
/// when it is freed.
void guard_tensors();

}  // namespace tessera::testing
