#include "tessera/base/shown_urls.h"

#include <algorithm>
#include <string_view>

namespace tessera {

std::string shown_urls(std::string text) {
  constexpr std::string_view kMark = "://";
  constexpr std::string_view kBehind = " \t\n\"'<>,;)]}";  // what no longer is of the URL
  for (auto at = text.find(kMark); at != std::string::npos; at = text.find(kMark, at + 1)) {
    const auto begin = at + kMark.size();
    const auto host_end = std::min(text.find_first_of("/?#", begin), text.size());
    const auto gap = std::min(text.find_first_of(" ,;]", begin), text.size());
    const auto sign = text.substr(begin, std::min(host_end, gap) - begin).rfind('@');
    if (sign != std::string::npos) text.replace(begin, sign, kHidden);
    const auto end = std::min(text.find_first_of(kBehind, begin), text.size());
    const auto query = text.find_first_of("?#", begin);
    if (query < end && query + 1 < end) text.replace(query + 1, end - query - 1, kHidden);
  }
  return text;
}

}  // namespace tessera
