// Stands in for Gloo's header of this name, which the LibTorch wheel does not ship. Declares only
// what ProcessGroupGloo.hpp names; objects of these classes are made and destroyed inside LibTorch
// alone.
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
