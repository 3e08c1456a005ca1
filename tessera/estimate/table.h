// The tables of Accelerate's `estimate-memory`, character for character.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::estimate {

enum class LoadDtype { float32, float16, int8, int4 };

const std::vector<std::string>& load_dtype_names();  ///< float32, float16, int8, int4
const std::string& name_of(LoadDtype dtype);
int64_t divisor_of(LoadDtype dtype);                  ///< of sizes in float32
LoadDtype parse_load_dtype(const std::string& name);  ///< UserError naming --dtypes

/// Bytes with a unit, a step being 1024, at most two decimals: "413.18 MB", "26.0 GB". `whole`: a
/// count, which below 1024 has no decimals ("512 bytes").
std::string python_bytes(double bytes, bool whole);

/// Bytes at each moment of one step of training with Adam and a batch of one, as Accelerate counts
/// them; float32 and float16 (or bfloat16) alone, the others are not trained.
struct TrainingPhases {
  int64_t model = 0, gradients = 0, backward = 0, step = 0;
  int64_t highest() const;
};
TrainingPhases training_phases(int64_t total_bytes, LoadDtype dtype);
bool trains_in(LoadDtype dtype);

/// One row a dtype: largest layer, total size, training with Adam. `total` and `largest`: bytes in
/// float32. Ends with a line feed.
std::string loading_table(const std::string& model, int64_t total, int64_t largest,
                          const std::vector<LoadDtype>& dtypes);

/// One row for each of `dtypes` that is trained: its phases. "" if none is.
std::string phase_table(const std::string& model, int64_t total,
                        const std::vector<LoadDtype>& dtypes);

}  // namespace tessera::estimate
