// The model section of a job file applied to a shape.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "tessera/base/error.h"
#include "tessera/base/nearest.h"
#include "tessera/config/run_config.h"
#include "tessera/models/hf_config.h"
#include "tessera/models/spec.h"

namespace tessera::config {

using models::hf_model_type;
using models::ModelShape;
using models::ShapeProblem;

namespace {

/// The shape of model.path, whose model_type is what model.type asks for.
ModelShape read_shape(const ModelSection& model) {
  const auto file = std::filesystem::path(model.path) / "config.json";
  const auto json = models::read_json_object(file, "model_type");
  const auto type = models::JsonKeys(file.string(), json).text("model_type");
  if (models::find_spec(type) != nullptr && model.type != "auto" && type != model.type) {
    user_error(
        "{}: model_type: expected {}, which model.type asks for, got {}; set model.type to auto",
        file.string(), model.type, type);
  }
  return models::model_shape_of(json, file.string());
}

ModelShape preset_shape(const std::string& name) {
  const auto names = models::model_preset_names();
  if (std::ranges::count(names, name) == 0) {
    user_error("model.preset: expected one of {}, got '{}'{}", fmt::join(names, ", "), name,
               did_you_mean(name, names));
  }
  return models::model_preset(name);
}

}  // namespace

std::optional<ShapeProblem> override_shape(const ModelSection& model, ModelShape& shape) {
  if (model.path.empty() && model.type != "auto" && model.type != hf_model_type(shape)) {
    return ShapeProblem{
        "type", fmt::format("model.preset {} is a {}, got {}; remove one of the two", model.preset,
                            hf_model_type(shape), model.type)};
  }
  const bool all_heads_keyed = shape.num_kv_heads == shape.num_heads;
  const bool ffn_follows_dim =
      models::spec_of(shape.family).ffn_follows_width && shape.ffn_dim == 4 * shape.dim;
  shape.vocab_size = model.vocab_size.value_or(shape.vocab_size);
  shape.num_layers = model.num_layers.value_or(shape.num_layers);
  shape.dim = model.dim.value_or(shape.dim);
  shape.num_heads = model.num_heads.value_or(shape.num_heads);
  shape.num_kv_heads =
      model.num_kv_heads.value_or(all_heads_keyed ? shape.num_heads : shape.num_kv_heads);
  shape.tie_embeddings = model.tie_embeddings.value_or(shape.tie_embeddings);
  shape.dropout = model.dropout;
  if (auto problem = models::size_problem(shape))
    return problem;  // before dividing and multiplying
  shape.ffn_dim = model.ffn_dim.value_or(ffn_follows_dim ? 4 * shape.dim : shape.ffn_dim);
  // A head width of the model's own (not dim / heads) stays as long as neither of the two changes.
  if (model.dim || model.num_heads) {
    if (shape.dim % shape.num_heads != 0) {
      return ShapeProblem{
          model.num_heads ? "num_heads" : "dim",
          fmt::format("{} heads do not divide a width of {}; set a model.dim that is a multiple of "
                      "model.num_heads",
                      shape.num_heads, shape.dim)};
    }
    shape.head_dim = shape.dim / shape.num_heads;
  }
  return models::shape_problem(shape);
}

ModelShape resolve_model_shape(const ModelSection& model) {
  auto shape = model.path.empty() ? preset_shape(model.preset) : read_shape(model);
  if (const auto problem = override_shape(model, shape))
    user_error("model.{}: {}", problem->field, problem->message);
  return shape;
}

}  // namespace tessera::config
