#include "tessera/hub/push_large_file.h"

#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/hub/retries.h"

namespace tessera::hub {
namespace {

void send_parts(Repository& repository, const LargeObject& object, std::string_view content,
                const LargeTransfer& transfer, const Settings& settings, const OnSent& on_sent) {
  const auto part_bytes = static_cast<size_t>(transfer.part_bytes);
  const size_t count = transfer.part_urls.empty() ? 1 : transfer.part_urls.size();
  std::vector<std::string> etags;
  for (size_t part = 0; part < count; ++part) {
    const auto& url = transfer.part_urls.empty() ? transfer.url : transfer.part_urls[part];
    const size_t begin = part * part_bytes;
    etags.push_back(with_retries(settings, [&] {
      return repository.put(url, content.substr(begin, part_bytes),
                            [&](int64_t sent) { on_sent(static_cast<int64_t>(begin) + sent); });
    }));
    if (!transfer.part_urls.empty() && etags.back().empty())
      user_error("{}: the store names no ETag for a part; check HF_ENDPOINT",
                 repository.name().text());
  }
  if (!transfer.part_urls.empty())
    with_retries(settings, [&] { repository.complete(transfer, object, etags); });
  if (!transfer.verify_url.empty())
    with_retries(settings, [&] { repository.verify(transfer, object); });
}

}  // namespace

void push_large_file(Repository& repository, const LargeObject& object, std::string_view content,
                     std::optional<LargeTransfer> transfer, const Settings& settings,
                     const OnSent& on_sent) {
  for (int attempt = 1; transfer; ++attempt) {
    try {
      send_parts(repository, object, content, *transfer, settings, on_sent);
      return;
    } catch (const Expired& error) {
      if (attempt >= settings.max_attempts) user_error("{}", error.what());
    }
    transfer = with_retries(settings, [&] { return repository.transfers_of({object}); }).front();
  }
}

}  // namespace tessera::hub
