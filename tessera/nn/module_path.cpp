#include "tessera/nn/module_path.h"

namespace tessera::nn {

std::shared_ptr<torch::nn::Module> find_module(const torch::nn::Module& root,
                                               const std::string& path) {
  const auto dot = path.find('.');
  const auto children = root.named_children();
  const auto* child = children.find(path.substr(0, dot));
  if (child == nullptr) return nullptr;
  return dot == std::string::npos ? *child : find_module(**child, path.substr(dot + 1));
}

void remove_module(torch::nn::Module& root, const std::string& path) {
  const auto dot = path.rfind('.');
  if (dot == std::string::npos) return root.unregister_module(path);
  const auto parent = find_module(root, path.substr(0, dot));
  TORCH_INTERNAL_ASSERT(parent != nullptr, path);
  parent->unregister_module(path.substr(dot + 1));
}

}  // namespace tessera::nn
