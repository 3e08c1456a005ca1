// Modules by the path under which they are registered, "model.layers.0".
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>

namespace tessera::nn {

/// The module at `path`; null if there is none.
std::shared_ptr<torch::nn::Module> find_module(const torch::nn::Module& root,
                                               const std::string& path);

/// Takes the module at `path`, which must be there, out of `root`: its parameters are no longer
/// root's.
void remove_module(torch::nn::Module& root, const std::string& path);

}  // namespace tessera::nn
