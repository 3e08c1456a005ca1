#include "tessera/config/accelerate/ledger.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/config/accelerate/shown_value.h"

namespace tessera::config::accelerate {

std::string verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::honoured:
      return "honoured";
    case Verdict::translated:
      return "translated";
    case Verdict::not_applicable:
      return "not applicable";
    case Verdict::refused:
      break;
  }
  return "refused";
}

std::string ledger_text(const std::vector<LedgerEntry>& ledger) {
  constexpr size_t kWidest = 40;  // one long value must not push every note off the screen
  const std::string columns[] = {"verdict", "key", "value", "note"};
  std::vector<std::vector<std::string>> rows{{std::begin(columns), std::end(columns)}};
  for (const auto& [setting, verdict, note] : ledger) {
    const auto value = setting.is_null ? "null" : shown_value(setting.key, setting.value);
    rows.push_back({verdict_name(verdict), setting.key, value, note});
  }
  size_t widths[3] = {};
  for (const auto& row : rows) {
    for (size_t i = 0; i < 3; ++i) {
      if (i < 2 || row[i].size() <= kWidest) widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string out;
  for (const auto& row : rows) {
    auto line = fmt::format("{:<{}}  {:<{}}  {:<{}}  {}", row[0], widths[0], row[1], widths[1],
                            row[2], widths[2], row[3]);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

void check_ledger(const std::vector<LedgerEntry>& ledger, bool strict) {
  const auto first = [&](Verdict verdict) {
    return std::ranges::find(ledger, verdict, &LedgerEntry::verdict);
  };
  if (const auto found = first(Verdict::refused); found != ledger.end()) {
    user_error("{}: {} {} is refused: {}", found->setting.origin, found->setting.key,
               shown_value(found->setting.key, found->setting.value), found->note);
  }
  const auto found = first(Verdict::not_applicable);
  if (!strict || found == ledger.end()) return;
  user_error("{}: {} {} has no effect here (--strict): {}; remove it", found->setting.origin,
             found->setting.key, shown_value(found->setting.key, found->setting.value),
             found->note);
}

}  // namespace tessera::config::accelerate
