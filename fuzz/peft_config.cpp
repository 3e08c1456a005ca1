// adapter_config.json: read, asked what it trains of a small model, and written again.
#include "tessera/models/peft_config.h"

#include "fuzz/memory_file.h"
#include "fuzz/target.h"
#include "tessera/models/adapter_json.h"

namespace {

namespace models = tessera::models;

models::ModelShape small_model() {
  auto shape = models::model_preset("micro");
  shape.num_layers = 2;
  return shape;
}

void read_and_count(std::string_view input) {
  static const tessera::fuzz::MemoryFile file("adapter_config.json");
  static const models::ModelShape shape = small_model();
  file.fill(input);
  auto config = models::read_peft_config(file.path());
  models::take_target_parameters(config, shape);
  config.spec = models::without_idle_entries(std::move(config.spec), shape);
  if (models::num_trained(config.spec, shape) < 1) std::abort();
  std::vector<models::PeftModule> modules;
  for (const auto& module : models::adapted_modules(config.spec, shape)) {
    modules.push_back({module.path, module.rank, module.alpha});
  }
  (void)models::to_peft_config(config, shape, modules).dump();
  const auto again = models::adapter_spec_of(models::to_json(config.spec), "index");
  if (again != config.spec) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return tessera::fuzz::run(data, size, read_and_count);
}
