// Where models come from and where they are kept.
#pragma once

#include <filesystem>
#include <string>

namespace tessera::hub {

struct Settings {
  std::filesystem::path cache;  ///< models--org--name/ lie in it
  std::string endpoint = "https://huggingface.co";
  std::string token;     ///< sent to the endpoint's own host alone; empty: none
  bool offline = false;  ///< only what is in the cache
  int num_connections = 4;
  int connect_seconds = 10;
  int stall_seconds = 60;    ///< without a byte: the connection counts as lost
  int max_attempts = 5;      ///< in a row that bring nothing
  double retry_seconds = 1;  ///< before the second attempt; doubles from one to the next
  int lock_seconds = 600;    ///< that another process may hold a file without progress
};

/// The settings as Hugging Face's own library finds them. Cache: HF_HUB_CACHE, else HF_HOME/hub,
/// where HF_HOME is XDG_CACHE_HOME/huggingface or ~/.cache/huggingface if unset. Endpoint:
/// HF_ENDPOINT. Token: HF_TOKEN, else the file HF_TOKEN_PATH or HF_HOME/token. Offline:
/// HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is 1, on, yes or true. UserError: no home folder, a token
/// with a line break.
Settings settings_from_environment();

}  // namespace tessera::hub
