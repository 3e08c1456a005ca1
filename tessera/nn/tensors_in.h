// The tensors in a value: in an argument or the result of a module's forward.
#pragma once

#include <c10/util/SmallVector.h>
#include <torch/types.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <optional>
#include <ranges>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace tessera::nn {

using TensorPointers = c10::SmallVector<torch::Tensor*, 4>;

namespace detail {

template <typename Value>
concept OptionalValue = requires {
  typename Value::value_type;
}
&&std::same_as<Value, std::optional<typename Value::value_type>>;

template <typename Value>
concept TupleLike = requires {
  std::tuple_size<Value>::value;
};

/// A struct of the user's that shows its tensors.
template <typename Value>
concept ShowsTensors = requires(Value& value) {
  value.visit_tensors([](auto&) {});
};

/// Elements must be there to be replaced: a torch::TensorList does not own what it shows.
template <typename Value>
concept Container = std::ranges::range<Value> &&
    std::is_lvalue_reference_v<std::ranges::range_reference_t<Value>> &&
    !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<Value>>>;

}  // namespace detail

/// visit(tensor) for each torch::Tensor in `value`, in order, undefined ones included: itself, or
/// those in a std::optional, pair, tuple, array, vector, map (its values) or a struct with a member
/// template `void visit_tensors(const auto& visit)` that calls visit(member) for each member that
/// holds some; nested as deep as they are. Other values hold none.
template <typename Value, typename Visit>
void visit_tensors(Value& value, const Visit& visit) {
  if constexpr (std::same_as<Value, torch::Tensor>) {
    visit(value);
  } else if constexpr (detail::ShowsTensors<Value>) {
    value.visit_tensors([&](auto& member) { tessera::nn::visit_tensors(member, visit); });
  } else if constexpr (detail::OptionalValue<Value>) {
    if (value) visit_tensors(*value, visit);
  } else if constexpr (detail::TupleLike<Value>) {
    std::apply([&](auto&... member) { (visit_tensors(member, visit), ...); }, value);
  } else if constexpr (detail::Container<Value>) {
    for (auto&& member : value) visit_tensors(member, visit);
  }
}

namespace detail {

template <typename Value>
constexpr bool tensors_are_seen();

template <typename... Members>
constexpr bool all_are_seen(const std::tuple<Members...>*) {
  return (tensors_are_seen<Members>() && ...);
}
template <typename First, typename Second>
constexpr bool all_are_seen(const std::pair<First, Second>*) {
  return tensors_are_seen<First>() && tensors_are_seen<Second>();
}
template <typename Member, size_t size>
constexpr bool all_are_seen(const std::array<Member, size>*) {
  return tensors_are_seen<Member>();
}

template <typename Value>
constexpr bool tensors_are_seen() {
  using Plain = std::remove_const_t<Value>;
  if constexpr (std::same_as<Value, torch::Tensor> || ShowsTensors<Value> ||
                std::is_arithmetic_v<Plain> || std::is_enum_v<Plain> ||
                std::same_as<Plain, std::string>) {
    return true;
  } else if constexpr (TupleLike<Value>) {
    return all_are_seen(static_cast<const Value*>(nullptr));
  } else if constexpr (OptionalValue<Value> || Container<Value>) {
    return tensors_are_seen<typename Value::value_type>();
  } else {
    return false;
  }
}

}  // namespace detail

/// Does visit_tensors come to every tensor that there may be in a Value?
template <typename Value>
inline constexpr bool kTensorsAreSeen = detail::tensors_are_seen<Value>();

}  // namespace tessera::nn
