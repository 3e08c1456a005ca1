#include "tessera/checkpoint/formats/stored_training.h"

#include <array>
#include <cmath>
#include <cstring>

#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

template <typename T>
double number_in(const std::array<std::byte, 8>& bytes) {
  T number;
  std::memcpy(&number, bytes.data(), sizeof(T));
  return static_cast<double>(number);
}

int64_t whole_number(const TensorSource& source, const std::string& name) {
  const auto& info = source.info(name);
  std::array<std::byte, 8> bytes{};
  double number = -1;
  if (info.num_elements() == 1) {
    source.read(name, 0, std::span(bytes).first(static_cast<size_t>(dtype_bytes(info.dtype))));
    if (info.dtype == DType::f32) number = number_in<float>(bytes);
    if (info.dtype == DType::f64) number = number_in<double>(bytes);
    if (info.dtype == DType::i64) number = number_in<int64_t>(bytes);
    if (info.dtype == DType::i32) number = number_in<int32_t>(bytes);
  }
  constexpr double kExact = 1LL << 53;
  if (!(number >= 0 && number <= kExact) || number != std::floor(number))
    user_error("{}: {}: expected a number of steps", source.path().string(), name);
  return static_cast<int64_t>(number);
}

}  // namespace

void take_step(const TensorSource& source, StoredTraining& training) {
  const auto found = training.states.find("step");
  if (found == training.states.end()) return;
  for (const auto& [parameter, name] : found->second) {
    const int64_t step = whole_number(source, name);
    if (training.step && *training.step != step) {
      user_error("{}: expected as many steps for every parameter, got {} for {} and {} before it",
                 source.path().string(), step, parameter, *training.step);
    }
    training.step = step;
  }
  training.states.erase(found);
}

}  // namespace tessera::checkpoint
