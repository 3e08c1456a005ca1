// What `tessera config show` and `tessera config migrate` print of a configuration.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tessera/config/accelerate/ledger.h"

namespace tessera::config::accelerate {

enum class FileKind { job, accelerate, deepspeed };

/// The kind of a file, told by the keys at its top: those of a job file, some of DeepSpeed's, or
/// else.
FileKind kind_of(const std::filesystem::path& file);

/// The translation of an Accelerate file, or of a DeepSpeed file by itself.
Translation translate_file(const std::filesystem::path& file);

/// The keys of the job file that differ from their defaults, each with its origin as a comment;
/// what a job file cannot say, or only beside other keys, is a comment altogether. "" if there is
/// nothing.
std::string native_yaml(const Translation& translation);

/// "tessera launch -n 4 --nnodes 2 .. PROGRAM".
std::string launch_line(const LaunchPlan& plan);

/// The ledger, what it comes to in our keys, and how such a run is started.
std::string show_text(const Translation& translation);
nlohmann::ordered_json show_json(const Translation& translation);

}  // namespace tessera::config::accelerate
