// Stands in for Gloo's header of this name, which the LibTorch wheel does not ship. The device is
// an opaque handle.
#pragma once

namespace gloo::transport {

class Device;
class UnboundBuffer;

}  // namespace gloo::transport
