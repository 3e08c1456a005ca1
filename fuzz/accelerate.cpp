// Configurations of Accelerate and DeepSpeed: read, decided about, shown. An input is one file of
// either kind; behind a NUL follows the DeepSpeed file that it names, by whatever name.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "fuzz/memory_file.h"
#include "fuzz/target.h"
#include "tessera/config/accelerate/ledger.h"
#include "tessera/config/accelerate/settings.h"
#include "tessera/config/accelerate/show.h"
#include "tessera/config/accelerate/to_fsdp2.h"
#include "tessera/config/run_config.h"

namespace {

namespace accelerate = tessera::config::accelerate;
using tessera::fuzz::MemoryFile;

[[noreturn]] void finding(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

template <typename Call>
void succeeds(const Call& call, const char* otherwise) {
  try {
    call();
  } catch (const tessera::UserError& error) {
    finding((std::string(otherwise) + ": " + error.what()).c_str());
  }
}

void show(const accelerate::Translation& translation, const MemoryFile& file) {
  const auto table = accelerate::ledger_text(translation.ledger);
  const auto lines = std::ranges::count(table, '\n');
  if (lines != static_cast<std::ptrdiff_t>(translation.ledger.size()) + 1) {
    finding("a ledger with more or fewer lines than keys");
  }
  const auto text = accelerate::show_text(translation);
  if (std::ranges::any_of(text, [](unsigned char c) { return c < ' ' && c != '\n'; })) {
    finding("control characters on the screen");
  }
  (void)accelerate::show_json(translation).dump();
  const auto native = accelerate::native_yaml(translation);
  if (native.empty()) return;
  file.fill(native);
  succeeds([&] { tessera::config::load_run_config(file.path(), {}); }, "migrates to no job file");
}

/// What is written is read back as it was.
void write_again(const accelerate::Settings& settings, const MemoryFile& file) {
  file.fill(accelerate::to_yaml(settings));
  succeeds(
      [&] {
        const auto again = accelerate::read_settings(file.path());
        for (const auto& setting : settings.all()) {
          if (again.text(setting.key) != settings.text(setting.key)) finding("written otherwise");
        }
      },
      "writes what it does not read");
}

void read_and_show(std::string_view input) {
  static const MemoryFile file("config"), deepspeed("deepspeed.json");
  const auto end = std::min(input.find('\0'), input.size());
  file.fill(input.substr(0, end));
  if (accelerate::kind_of(file.path()) != accelerate::FileKind::accelerate) {
    return show(accelerate::translate_file(file.path()), file);
  }
  auto settings = accelerate::read_settings(file.path());
  if (const auto* named = settings.find("deepspeed_config.deepspeed_config_file")) {
    deepspeed.fill(input.substr(std::min(end + 1, input.size())));
    auto setting = *named;
    setting.value = deepspeed.path();
    settings.set(setting);
  }
  write_again(settings, file);
  (void)accelerate::environment_of(settings);
  show(accelerate::translate(settings), file);
  (void)accelerate::to_yaml(accelerate::to_fsdp2(settings).settings);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return tessera::fuzz::run(data, size, read_and_show);
}
