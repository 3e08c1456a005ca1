#include "tessera/models/spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <numeric>

namespace tessera::models {

#define TESSERA_FAMILY(name) const FamilySpec& name##_spec();
#include "tessera/models/families.def"
#undef TESSERA_FAMILY

namespace {

const std::vector<const FamilySpec*>& specs() {
  static const std::vector<const FamilySpec*> list{
#define TESSERA_FAMILY(name) &name##_spec(),
#include "tessera/models/families.def"
#undef TESSERA_FAMILY
  };
  return list;
}

}  // namespace

int64_t ParameterSpec::num_elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

const FamilySpec& spec_of(ModelFamily family) { return *specs().at(static_cast<size_t>(family)); }

const FamilySpec* find_spec(std::string_view model_type) {
  for (const auto* spec : specs()) {
    for (const auto& type : spec->types) {
      if (type.name == model_type) return spec;
    }
  }
  return nullptr;
}

std::vector<std::string> model_types() {
  std::vector<std::string> names;
  for (const auto* spec : specs()) {
    for (const auto& type : spec->types) names.push_back(type.name);
  }
  return names;
}

std::string either_of(const std::vector<std::string>& names) {
  if (names.size() == 1) return names.front();
  return fmt::format("{} or {}", fmt::join(names.begin(), names.end() - 1, ", "), names.back());
}

}  // namespace tessera::models
