// Errors of the library in the words of a job file.
#pragma once

#include <string>

namespace tessera::config {

/// `message` with the library's own options called as a job file calls them: "set seq_len" becomes
/// "set data.seq_len". An option is a word that is the name of exactly one key, where it can be
/// nothing else: it has an underscore, or begins the message ("train: .."), or follows "set".
std::string with_job_keys(const std::string& message);

}  // namespace tessera::config
