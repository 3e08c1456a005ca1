// A model as named modules with their bytes, before any tensor exists.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tessera::estimate {

struct Module {
  std::string name;           ///< within the one that holds it
  int64_t bytes = 0;          ///< of its own parameters (float32) and buffers
  std::vector<Module> parts;  ///< modules in it
  int64_t count = 1;          ///< so many alike, one after the other
  bool whole = false;         ///< stays on one device (transformers: _no_split_modules)
};

/// Bytes of all parameters and buffers. UserError beyond 2^53: no such model exists.
int64_t total_bytes(const Module& model);

/// The largest module that is not split over devices: a whole one, or one without parts. Its name
/// and bytes; the first of several as large.
struct LargestLayer {
  std::string name;
  int64_t bytes = 0;
};
LargestLayer largest_layer(const Module& model);

Module linear(const std::string& name, int64_t inputs, int64_t outputs, bool bias);
Module embedding(const std::string& name, int64_t rows, int64_t width);

/// `vectors` of one width: 1 for RMSNorm, 2 for LayerNorm.
Module norm(const std::string& name, int64_t width, int vectors);

/// Stored tensors as modules: "a.b.weight" belongs to module b of module a, and an element of the
/// first list on the way ("layers.0") is whole. Each tensor is a name and the bytes that it has in
/// float32.
Module modules_of_tensors(const std::vector<std::pair<std::string, int64_t>>& tensors);

}  // namespace tessera::estimate
