// The table and the JSON file of a benchmark.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/contestants.h"

namespace tessera::bench {

/// The runs of each contestant, for one size and dtype.
using Results = std::map<std::string, std::vector<Result>>;

/// The medians of every contestant that ran, in the order of contestants(), each beside those of
/// its baseline; below, our sharded runs beside our own DDP.
std::string table(const Job& job, const Results& results);

/// Every run, by contestant.
nlohmann::json to_json(const Results& results);

/// Processor, cores, kernel, and the commit of the sources ("-dirty": changed since).
nlohmann::json machine();

}  // namespace tessera::bench
