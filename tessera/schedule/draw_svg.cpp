#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

#include "tessera/report/number.h"
#include "tessera/report/svg.h"
#include "tessera/schedule/check.h"
#include "tessera/schedule/draw.h"

namespace tessera::schedule {
namespace {

constexpr double kLeft = 72, kTop = 96, kRow = 30, kBox = 24, kRightRoom = 190;
constexpr double kShortest = 15;  // pixels of the shortest action: two digits
constexpr double kMostWidth = 6000, kLeastWidth = 640;

// Viewers that ignore media queries show the light colours.
constexpr std::string_view kStyle = R"(<style>
text{font-family:system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;font-size:12px;fill:#57606a}
.back{fill:#fff}.title{font-size:18px;font-weight:600;fill:#1f2328}.axis{stroke:#8c959f}.idle{fill:#f1f3f5}
.n text{font-size:9.5px;fill:#1f2328;text-anchor:middle}.n rect{stroke:#fff;stroke-width:1}
.F{fill:#86b6f2}.B{fill:#86cf95}.I{fill:#6fcccb}.W{fill:#f3b56c}
@media(prefers-color-scheme:dark){text{fill:#9198a1}.back{fill:#0d1117}.title{fill:#f0f6fc}.axis{stroke:#656c76}
.idle{fill:#1c2128}.n text{fill:#f0f6fc}.n rect{stroke:#0d1117}.F{fill:#2459a6}.B{fill:#2b7a3d}.I{fill:#17767a}.W{fill:#a1601a}}
</style>
)";

struct Frame {
  double span = 1;  ///< of time
  double pixels_per_time = 1;
  double width = 0, bottom = 0;  ///< of the rows

  double x(double time) const { return kLeft + time * pixels_per_time; }
};

Frame make_frame(const Schedule& schedule, const Simulation& simulation) {
  double shortest = std::numeric_limits<double>::infinity();
  for (const auto& rank : simulation.spans) {
    for (const auto& span : rank)
      if (span.end > span.start) shortest = std::min(shortest, span.end - span.start);
  }
  const double span = simulation.makespan > 0 ? simulation.makespan : 1;
  const double width = std::clamp(span / shortest * kShortest, kLeastWidth, kMostWidth);
  return {span, width / span, width, kTop + kRow * schedule.num_ranks()};
}

std::string box(const Schedule& schedule, const Frame& frame, int rank, size_t index,
                const Span& span) {
  const auto& actions = schedule.ranks[static_cast<size_t>(rank)];
  const auto& action = actions[index];
  const bool second = index > 0 && actions[index - 1].with_next;
  const bool half = action.with_next || second;
  const double height = half ? kBox / 2 : kBox;
  const double x = frame.x(span.start), width = frame.x(span.end) - x;
  const double y = kTop + rank * kRow + (second ? kBox / 2 : 0);
  const int turn = action.stage / schedule.num_ranks();
  const int last_turn = std::max(1, (schedule.num_stages - 1) / schedule.num_ranks());
  auto out = fmt::format(
      R"(<rect class="{}" x="{:.1f}" y="{:.0f}" width="{:.1f}" height="{:.0f}"{}/>)",
      "FBIW"[static_cast<int>(action.kind)], x, y, width, height,
      turn == 0 ? "" : fmt::format(R"( fill-opacity="{:.2f}")", 1 - 0.55 * turn / last_turn));
  const auto number = fmt::format("{}", action.micro_batch);
  if (width >= 6.5 * static_cast<double>(number.size())) {
    out += fmt::format(R"(<text x="{:.1f}" y="{:.1f}">{}</text>)", x + width / 2,
                       y + height / 2 + 3.4, number);
  }
  return out + "\n";
}

std::string rows(const Schedule& schedule, const Simulation& simulation, const Frame& frame) {
  std::string out;
  const auto peaks = peak_activations(schedule);
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const double y = kTop + rank * kRow;
    out += fmt::format(R"(<text x="{:.0f}" y="{:.0f}" text-anchor="end">rank {}</text>)",
                       kLeft - 10, y + 16, rank);
    out +=
        fmt::format(R"(<rect class="idle" x="{:.0f}" y="{:.0f}" width="{:.1f}" height="{:.0f}"/>)",
                    kLeft, y, frame.width, kBox);
    out += fmt::format(R"(<text x="{:.1f}" y="{:.0f}">bubble {:.1f} %, peak {:.4g}</text>)"
                       "\n<g class=\"n\">\n",
                       kLeft + frame.width + 12, y + 16, 100 * simulation.bubble(rank),
                       peaks[static_cast<size_t>(rank)]);
    const auto& spans = simulation.spans[static_cast<size_t>(rank)];
    for (size_t i = 0; i < spans.size(); ++i) {
      if (spans[i].end > spans[i].start) out += box(schedule, frame, rank, i, spans[i]);
    }
    out += "</g>\n";
  }
  return out;
}

std::string axis(const Frame& frame, const std::string& unit) {
  std::string out;
  const int most_ticks = std::max(2, static_cast<int>(frame.width / 80));
  const auto ticks = report::linear_ticks(0, frame.span, most_ticks);
  const auto labels = report::tick_labels(ticks);
  for (size_t i = 0; i < ticks.size(); ++i) {
    const double x = frame.x(ticks[i]);
    out += fmt::format(R"(<path class="axis" d="M{:.1f} {:.0f}v5"/>)", x, frame.bottom);
    out += fmt::format(R"(<text x="{:.1f}" y="{:.0f}" text-anchor="middle">{}</text>)", x,
                       frame.bottom + 20, labels[i]);
  }
  out += fmt::format(R"(<path class="axis" d="M{:.0f} {:.0f}h{:.1f}"/>)", kLeft, frame.bottom,
                     frame.width);
  out += fmt::format(R"(<text x="{:.1f}" y="{:.0f}">{}</text>)"
                     "\n",
                     kLeft + frame.width + 12, frame.bottom + 20,
                     unit.empty() ? "time (a forward takes 1)" : report::escaped("time, " + unit));
  return out;
}

std::string legend(const Schedule& schedule) {
  std::array<bool, 4> used{};
  for (const auto& actions : schedule.ranks)
    for (const auto& action : actions) used[static_cast<size_t>(action.kind)] = true;
  constexpr std::array<const char*, 4> kMeanings = {"forward", "backward", "input part",
                                                    "weight part"};
  std::string out;
  double x = kLeft;
  const auto add = [&](std::string_view css_class, std::string_view meaning) {
    out += fmt::format(
        R"svg(<rect class="{}" x="{:.0f}" y="66" width="14" height="14"/><text x="{:.0f}" y="78">{}</text>)svg",
        css_class, x, x + 20, meaning);
    x += 40 + 6.5 * static_cast<double>(meaning.size());
  };
  for (size_t kind = 0; kind < used.size(); ++kind)
    if (used[kind]) add(std::string_view("FBIW").substr(kind, 1), kMeanings[kind]);
  add("idle", "idle");
  out += fmt::format(
      R"(<text x="{:.0f}" y="78">number: micro-batch{}</text>)", x,
      schedule.num_stages > schedule.num_ranks() ? "; paler: later stages of a rank" : "");
  return out + "\n";
}

}  // namespace

std::string schedule_svg(const Schedule& schedule, const Simulation& simulation,
                         const DrawOptions& options) {
  const auto frame = make_frame(schedule, simulation);
  auto out = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0f}" height="{1:.0f}" viewBox="0 0 {0:.0f} {1:.0f}" role="img">)"
      "\n<title>{2}</title>\n",
      kLeft + frame.width + kRightRoom, frame.bottom + 36, report::escaped(options.title));
  out += kStyle;
  out += R"(<rect class="back" width="100%" height="100%"/>)";
  out +=
      fmt::format(R"(<text class="title" x="24" y="30">{}</text>)", report::escaped(options.title));
  out += fmt::format(R"(<text x="24" y="50">{}</text>)"
                     "\n",
                     report::escaped(options.subtitle));
  out += legend(schedule);
  out += rows(schedule, simulation, frame);
  out += axis(frame, options.unit);
  return out + "</svg>\n";
}

}  // namespace tessera::schedule
