// Ranks that have an Accelerator, in layouts that Accelerate's users know.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "tessera/train/accelerator.h"
#include "tests/support/ranks.h"

namespace tessera {

struct AcceleratorLayout {
  int ranks;
  const char* kind;  ///< "MULTI_CPU", or a strategy of FSDP 1
  bool is_sharded() const { return kind != std::string("MULTI_CPU"); }
};

/// Runs `body` on each rank. `classes`: what FSDP wraps; none: the whole model is one unit.
inline void on_accelerator(const AcceleratorLayout& layout, const AcceleratorOptions& options,
                           const std::function<void(Accelerator&)>& body,
                           const std::string& classes = "") {
  const int ranks = layout.ranks;
  const bool sharded = layout.is_sharded();
  on_mesh({.shape = {.dp_replicate = sharded ? 1 : ranks, .dp_shard = sharded ? ranks : 1}},
          [&](const mesh::DeviceMesh& mesh) {
            config::accelerate::Settings settings;
            const auto set = [&](const char* key, std::string value) {
              settings.set({.key = key, .value = std::move(value), .origin = "test"});
            };
            set("distributed_type", sharded ? "FSDP" : layout.kind);
            if (sharded) {
              set("fsdp_config.fsdp_version", "1");
              set("fsdp_config.fsdp_sharding_strategy", layout.kind);
            }
            if (sharded && !classes.empty()) {
              set("fsdp_config.fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP");
              set("fsdp_config.fsdp_transformer_layer_cls_to_wrap", classes);
            }
            Accelerator accelerator(options, mesh, settings);
            body(accelerator);
          });
}

}  // namespace tessera
