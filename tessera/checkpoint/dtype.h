// Types of stored numbers, without LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera::checkpoint {

/// What safetensors can hold.
enum class DType : uint8_t {
  f64,
  f32,
  f16,
  bf16,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean,
  f8_e4m3,
  f8_e5m2
};

std::string_view dtype_name(DType dtype);  ///< as safetensors spells it: "F32", "BOOL", ..
std::optional<DType> dtype_named(std::string_view name);
int64_t dtype_bytes(DType dtype);  ///< of one element

}  // namespace tessera::checkpoint
