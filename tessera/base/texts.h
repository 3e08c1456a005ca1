// Enums whose values users know by a text: the one place where a text becomes a value, and back.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tessera {

/// The text of each enumerator of E, in their order, which starts at 0 and has no gaps: a
/// std::array of std::string_view beside each such enum (base/choices.h).
template <typename E>
inline constexpr std::nullptr_t kTexts = nullptr;

/// An enum with texts.
template <typename E>
concept HasTexts = std::is_enum_v<E> && !std::is_same_v<decltype(kTexts<E>), const std::nullptr_t>;

template <HasTexts E>
constexpr std::string_view text_of(E value) {
  return kTexts<E>.at(static_cast<size_t>(value));
}

/// Nothing if no value has this text.
template <HasTexts E>
constexpr std::optional<E> value_named(std::string_view text) {
  const auto found = std::ranges::find(kTexts<E>, text);
  if (found == kTexts<E>.end()) return std::nullopt;
  return static_cast<E>(found - kTexts<E>.begin());
}

template <HasTexts E>
std::vector<std::string> texts_of() {
  return {kTexts<E>.begin(), kTexts<E>.end()};
}

template <HasTexts E>
constexpr size_t num_values() {
  return kTexts<E>.size();
}

}  // namespace tessera
