#include "tessera/report/plot_frame.h"

#include <fmt/format.h>

#include "tessera/report/svg.h"

namespace tessera::report {
namespace {

// Viewers that ignore media queries show the light colours.
constexpr std::string_view kPlotStyle = R"(<style>
text{font-family:system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;font-size:12px;fill:#57606a}
.back{fill:#fff}.title{font-size:18px;font-weight:600;fill:#1f2328}.grid{stroke:#e6e8eb}.axis{stroke:#8c959f}
.raw{stroke:#4c8dd6;stroke-opacity:.38;fill:none}.bar{fill:#4c8dd6}.mean{stroke:#1764b5;fill:none;stroke-width:2.4}
.line{stroke:#d9730d;fill:none;stroke-width:1.4;stroke-dasharray:4 3}.dot{fill:#d9730d;stroke:#fff;stroke-width:1.5}
.train{fill:#1764b5;font-weight:600}.validation{fill:#c2620a;font-weight:600}
.bad{stroke:#cf222e;stroke-dasharray:3 3}.badtext{fill:#cf222e}
@media(prefers-color-scheme:dark){text{fill:#9198a1}.back{fill:#0d1117}.title{fill:#f0f6fc}.grid{stroke:#262c34}
.axis{stroke:#656c76}.raw{stroke:#58a6ff}.bar{fill:#58a6ff}.mean{stroke:#79b8ff}.line{stroke:#f0883e}.dot{fill:#f0883e;stroke:#0d1117}
.train{fill:#79b8ff}.validation{fill:#f0883e}.bad{stroke:#ff7b72}.badtext{fill:#ff7b72}}
</style>
)";

std::string shortened(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "…";
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;  // XML forbids control characters
    }
  }
  return out;
}

std::string begin_plot(std::string_view title, std::string_view subtitle) {
  auto out = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0f}" height="{1:.0f}" viewBox="0 0 {0:.0f} {1:.0f}" role="img">)"
      "\n<title>{2}</title>\n",
      kPlotWidth, kPlotHeight, escaped(title));
  out += kPlotStyle;
  out += fmt::format(R"(<rect class="back" width="{:.0f}" height="{:.0f}"/>)", kPlotWidth,
                     kPlotHeight);
  out +=
      fmt::format(R"(<text class="title" x="24" y="34">{}</text>)", escaped(shortened(title, 80)));
  return out + fmt::format(R"(<text x="24" y="54">{}</text>)"
                           "\n",
                           escaped(shortened(subtitle, 130)));
}

std::string axis_names(std::string_view x, std::string_view y) {
  auto out = fmt::format(R"(<path class="axis" d="M{:.0f} {:.0f}H{:.0f}"/>)", kPlotLeft,
                         kPlotBottom, kPlotRight);
  out += fmt::format(R"(<text x="{:.0f}" y="{:.0f}" text-anchor="middle">{}</text>)",
                     (kPlotLeft + kPlotRight) / 2, kPlotBottom + 40, escaped(x));
  return out + fmt::format(R"(<text x="{:.0f}" y="{:.0f}" text-anchor="end">{}</text>)"
                           "\n",
                           kPlotLeft - 10, kPlotTop - 12, escaped(y));
}

std::string y_tick(double y, std::string_view label) {
  return fmt::format(R"(<path class="grid" d="M{:.0f} {:.1f}H{:.0f}"/>)", kPlotLeft, y,
                     kPlotRight) +
         fmt::format(R"(<text x="{:.0f}" y="{:.1f}" text-anchor="end">{}</text>)"
                     "\n",
                     kPlotLeft - 10, y + 4, label);
}

std::string x_tick(double x, std::string_view label) {
  return fmt::format(R"(<path class="axis" d="M{:.1f} {:.0f}v5"/>)", x, kPlotBottom) +
         fmt::format(R"(<text x="{:.1f}" y="{:.0f}" text-anchor="middle">{}</text>)"
                     "\n",
                     x, kPlotBottom + 20, label);
}

}  // namespace tessera::report
