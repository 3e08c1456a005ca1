// A trial that fails, with as little in it as still fails.
#pragma once

#include <functional>

#include "tests/combinations/draw.h"

namespace tessera::combinations {

/// Takes away the second layout, settings, lines of Accelerate's file and parts of the model, one
/// at a time, for as long as `fails` says yes of what is left.
Trial reduced(Trial trial, const std::function<bool(const Trial&)>& fails);

}  // namespace tessera::combinations
