#include "tessera/checkpoint/index_schema.h"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

using nlohmann::json;

// So that products of two counts, as steps and sequences, are far from overflowing.
constexpr uint64_t kMostSteps = uint64_t{1} << 40, kMostCounted = uint64_t{1} << 53;

struct Rule;

/// What a value must be. Of a list or an object with any keys, each of its values.
struct Kind {
  const char* expected;
  bool (*fits)(const json& value);
  std::span<const Rule> keys = {};  ///< of an object
  const Kind* each = nullptr;       ///< of a list, or of an object with any keys
};

struct Rule {
  std::string_view key;
  const Kind* kind;
};

bool at_most(const json& value, uint64_t most) {
  return value.is_number_unsigned() && value.get<uint64_t>() <= most;
}

bool is_hex(const json& value) {
  return value.is_string() &&
         std::ranges::all_of(value.get_ref<const std::string&>(), [](const char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

bool is_any_list(const json& value) { return value.is_array(); }
bool is_any_object(const json& value) { return value.is_object(); }

bool is_steps(const json& value) { return at_most(value, kMostSteps); }
bool is_count(const json& value) { return at_most(value, kMostCounted); }
bool is_size(const json& value) { return at_most(value, kMostSteps) && value != 0; }
bool is_integer(const json& value) {
  return value.is_number_integer() && (!value.is_number_unsigned() || at_most(value, INT64_MAX));
}
bool is_number(const json& value) { return value.is_number(); }
bool is_positive(const json& value) { return value.is_number() && value.get<double>() > 0; }
bool is_fraction(const json& value) {
  return value.is_number() && value.get<double>() >= 0 && value.get<double>() < 1;
}
bool is_text(const json& value) { return value.is_string(); }
bool is_scheduler(const json& value) { return is_count(value) || value.is_object(); }
bool is_object_or_null(const json& value) { return value.is_object() || value.is_null(); }

constexpr Kind kSteps{"a whole number from 0 to 2^40", is_steps};
constexpr Kind kCount{"a whole number from 0 to 2^53", is_count};
constexpr Kind kSize{"a whole number from 1 to 2^40", is_size};
constexpr Kind kInteger{"a whole number", is_integer};
constexpr Kind kNumber{"a number", is_number};
constexpr Kind kPositive{"a number above 0", is_positive};
constexpr Kind kFraction{"a number of 0 or more and below 1", is_fraction};
constexpr Kind kText{"text", is_text};
constexpr Kind kHex{"hexadecimal digits", is_hex};

constexpr Kind kStepsByName{"an object", is_any_object, {}, &kSteps};
constexpr Kind kNumbers{"a list", is_any_list, {}, &kNumber};
constexpr Kind kObjects{"a list", is_any_list};  // each as its own owner reads it
constexpr Kind kHexTexts{"a list", is_any_list, {}, &kHex};

constexpr Rule kSeedKeys[] = {{"model", &kInteger}, {"data", &kInteger}};
constexpr Kind kSeeds{"an object", is_any_object, kSeedKeys};

constexpr Rule kOptimizerKeys[] = {{"type", &kText},
                                   {"step", &kSteps},
                                   {"fewer_steps", &kStepsByName},
                                   {"learning_rates", &kNumbers},
                                   {"archive", &kHex}};
constexpr Kind kOptimizer{"an object", is_any_object, kOptimizerKeys};
constexpr Kind kOptimizers{"a list", is_any_list, {}, &kOptimizer};

constexpr Rule kScalerKeys[] = {
    {"scale", &kPositive}, {"growth_tracker", &kCount}, {"skipped_steps", &kCount}};
constexpr Kind kScaler{"an object", is_any_object, kScalerKeys};

constexpr Rule kBestKeys[] = {
    {"loss", &kNumber}, {"step", &kSteps}, {"since", &kCount}, {"reached", &kNumber}};
constexpr Kind kBest{"an object", is_any_object, kBestKeys};

constexpr Rule kDataKeys[] = {{"tokens", &kCount}, {"sample", &kHex}};
constexpr Kind kData{"an object", is_any_object, kDataKeys};

constexpr Rule kBaseKeys[] = {{"path", &kText}, {"sample", &kHex}};
constexpr Kind kBase{"an object", is_any_object, kBaseKeys};
constexpr Kind kAdapter{"an object", is_any_object};

// LibTorch's schedulers are kept as their steps, others as what they tell.
constexpr Kind kScheduler{"a whole number from 0 to 2^53, or an object", is_scheduler};
constexpr Kind kSchedulers{"a list", is_any_list, {}, &kScheduler};

constexpr Rule kLoaderKeys[] = {{"position", &kSteps}, {"generator", &kHex}};
constexpr Kind kLoader{"an object or null", is_object_or_null, kLoaderKeys};
constexpr Kind kLoaders{"a list", is_any_list, {}, &kLoader};

constexpr Rule kStateKeys[] = {{"step", &kSteps},
                               {"samples_seen", &kCount},
                               {"tokens_seen", &kCount},
                               {"seeds", &kSeeds},
                               {"validation_fraction", &kFraction},
                               {"optimizer", &kOptimizer},
                               {"loss_scaler", &kScaler},
                               {"best_validation", &kBest},
                               {"run_id", &kHex},
                               {"data", &kData},
                               {"base", &kBase},
                               {"adapter", &kAdapter},
                               {"micro_batches", &kCount},
                               {"micro_batch", &kCount},
                               {"optimizers", &kOptimizers},
                               {"schedulers", &kSchedulers},
                               {"objects", &kObjects},
                               {"loaders", &kLoaders},
                               {"generators", &kHexTexts}};
constexpr Rule kLayoutKeys[] = {{"num_ranks", &kSize}, {"placement", &kText},
                                {"tp", &kSize},        {"pp", &kSize},
                                {"units", &kText},     {"converted_from", &kText}};

constexpr Kind kState{"an object", is_any_object, kStateKeys};
constexpr Kind kLayout{"an object", is_any_object, kLayoutKeys};
constexpr Kind kModel{"an object", is_any_object};

std::string shown(const json& value) {
  if (value.is_structured()) return value.type_name();
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

void check_kind(const std::string& where, const json& value, const Kind& kind) {
  if (!kind.fits(value)) {
    user_error("{}: expected {}, got {}", where, kind.expected, shown(value));
  }
  if (!value.is_structured()) return;
  for (const auto& [key, of_key] : kind.keys) {
    const auto found = value.find(key);
    if (found != value.end()) check_kind(fmt::format("{}.{}", where, key), *found, *of_key);
  }
  if (kind.each == nullptr) return;
  size_t i = 0;
  for (const auto& item : value) check_kind(fmt::format("{}[{}]", where, i++), item, *kind.each);
}

}  // namespace

void check_schema(const std::filesystem::path& path, const Index& index) {
  const auto check_part = [&](const char* name, const json& value, const Kind& kind) {
    if (!value.is_null()) check_kind(fmt::format("{}: {}", path.string(), name), value, kind);
  };
  check_part("step", json(static_cast<uint64_t>(index.step)), kSteps);
  check_part("layout", index.layout, kLayout);
  check_part("state", index.state, kState);
  check_part("model", index.model, kModel);
}

}  // namespace tessera::checkpoint
