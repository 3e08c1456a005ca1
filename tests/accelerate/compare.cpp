// Compares two texts, line by line and word by word: numbers may differ by a hundred-thousandth,
// those of lines whose name begins with `exact` in their last bits alone, those with `bf16` by a
// hundredth, and with `fp16` by a thousandth.
//
//     accelerate_compare EXPECTED FOUND [TOLERANCE]
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

std::vector<std::string> lines_of(const char* path) {
  std::ifstream file(path);
  if (!file) {
    fmt::print(stderr, "{}: cannot be read\n", path);
    std::exit(2);
  }
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

bool alike(const std::string& expected, const std::string& found, double tolerance) {
  char *end = nullptr, *other = nullptr;
  const double a = std::strtod(expected.c_str(), &end), b = std::strtod(found.c_str(), &other);
  if (*end != '\0' || *other != '\0') return expected == found;
  return std::abs(a - b) <= tolerance * std::max(1.0, std::abs(a));
}

/// Why the lines differ; empty: they do not.
std::string difference(const std::string& expected, const std::string& found, double tolerance) {
  if (expected.starts_with("exact")) tolerance = 1e-14;
  if (expected.starts_with("bf16")) tolerance = 1e-2;
  if (expected.starts_with("fp16")) tolerance = 1e-3;
  std::istringstream a(expected), b(found);
  for (int word = 0;; ++word) {
    std::string left, right;
    const bool more = static_cast<bool>(a >> left), other = static_cast<bool>(b >> right);
    if (!more && !other) return "";
    if (more != other || !alike(left, right, tolerance)) {
      return fmt::format("word {}: expected '{}', got '{}'", word, left, right);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: accelerate_compare EXPECTED FOUND [TOLERANCE]\n");
    return 2;
  }
  const double tolerance = argc > 3 ? std::atof(argv[3]) : 1e-5;
  const auto expected = lines_of(argv[1]), found = lines_of(argv[2]);
  int different = 0;
  for (size_t i = 0; i < std::max(expected.size(), found.size()); ++i) {
    const std::string none, &a = i < expected.size() ? expected[i] : none,
                            &b = i < found.size() ? found[i] : none;
    const auto why = difference(a, b, tolerance);
    if (why.empty()) continue;
    ++different;
    fmt::print("line {}, {}: {}\n", i + 1, a.substr(0, a.find(' ')), why);
  }
  fmt::print("{} lines, {} differ\n", expected.size(), different);
  return different == 0 && !expected.empty() ? 0 : 1;
}
