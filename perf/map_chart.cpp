// The map of html.h, with bands of bytes over time. Its viewBox is as wide as a screen; on a phone
// the reader scrolls it sideways.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "chart_scale.h"

namespace fsccl::perf {
namespace {

constexpr double kMapWidth = 1120, kMapLeft = 52, kMapRight = 18, kMapBottom = 38;
constexpr double kBandName = 16, kBandGap = 6, kBandsHeight = 460, kLeastBand = 48;
constexpr double kLetter = 6.2, kLine = 12;

struct Frame {
  double top = 0, height = 0;
};

// Returns the frames of the bands. Their heights are proportional to the bytes, but high enough to
// be seen.
std::vector<Frame> frames_of(const std::vector<MapChart::Band>& bands) {
  double sum = 0, top = 4;
  for (const MapChart::Band& band : bands) sum += std::max(band.bytes, 1.0);
  std::vector<Frame> frames;
  for (const MapChart::Band& band : bands) {
    const double height = std::max(kLeastBand, kBandsHeight * std::max(band.bytes, 1.0) / sum);
    frames.push_back({top + kBandName, height});
    top += kBandName + height + kBandGap;
  }
  return frames;
}

void draw_area(const MapChart::Area& area, const Frame& frame, double band_bytes, const Scale& x,
               std::string* svg) {
  const auto down = [&](double bytes) {
    return frame.top + frame.height * (1 - std::clamp(bytes / band_bytes, 0.0, 1.0));
  };
  const double left = x.place(area.begin), right = x.place(area.end), top = down(area.high),
               bottom = down(area.low);
  const double width = std::max(right - left, 0.4), height = std::max(bottom - top, 0.4);
  fmt::format_to(std::back_inserter(*svg),
                 "<rect class=\"area{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" "
                 "height=\"{:.1f}\" style=\"fill:var(--c{})\">"
                 "<title>{}</title></rect>\n",
                 area.pale ? " pale" : "", left, top, width, height, area.color % kPageColors,
                 escape_html(area.words));
  if (height < kLine || width < kLetter * static_cast<double>(area.label.size()) + 6) return;
  fmt::format_to(std::back_inserter(*svg),
                 "<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
                 area.pale ? "pale-in" : "in", left + width / 2, top + height / 2 + 4,
                 escape_html(area.label));
}

std::string legend_of(const MapChart& chart) {
  std::string legend;
  for (const MapChart::Key& key : chart.legend)
    legend += fmt::format(
        "<li><svg viewBox=\"0 0 20 10\" aria-hidden=\"true\"><rect{} width=\"20\" height=\"10\" "
        "style=\"fill:var(--c{})\"/></svg>"
        "{}</li>",
        key.pale ? " class=\"pale\"" : "", key.color % kPageColors, escape_html(key.name));
  return legend;
}

}  // namespace

std::string draw(const MapChart& chart) {
  if (chart.bands.empty()) return {};
  const std::vector<Frame> frames = frames_of(chart.bands);
  const double bottom = frames.back().top + frames.back().height, height = bottom + kMapBottom;
  const Scale x(Axis::kLinear, 0, chart.x_end, kMapLeft, kMapWidth - kMapRight, Scale::End::kExact);
  std::string svg = open_svg(kMapWidth, height, chart.title);
  for (size_t i = 0; i < frames.size(); i++) {
    const MapChart::Band& band = chart.bands[i];
    const Frame& frame = frames[i];
    svg += fmt::format(
        "<text x=\"{}\" y=\"{:.1f}\">{}</text>\n<rect class=\"band\" x=\"{}\" y=\"{:.1f}\" "
        "width=\"{}\" height=\"{:.1f}\"/>\n",
        kMapLeft, frame.top - 4, escape_html(band.name), kMapLeft, frame.top,
        kMapWidth - kMapRight - kMapLeft, frame.height);
    if (!chart.scaled) continue;
    svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kMapLeft - 5,
                       frame.top + 9, short_bytes(band.bytes));
    if (frame.height > 2 * kLine)
      svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">0</text>\n", kMapLeft - 5,
                         frame.top + frame.height);
  }
  for (const MapChart::Area& area : chart.areas)
    if (area.band < frames.size())
      draw_area(area, frames[area.band], std::max(chart.bands[area.band].bytes, 1.0), x, &svg);
  for (const double mark : chart.marks)
    for (const Frame& frame : frames)
      svg += fmt::format("<path class=\"mark\" d=\"M{:.1f} {:.1f}v{:.1f}\"/>\n", x.place(mark),
                         frame.top, frame.height);
  for (const double tick : x.ticks())
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
                       x.place(tick), bottom + 15, x.label(tick));
  svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n</svg>\n",
                     (kMapLeft + kMapWidth) / 2, height - 6, escape_html(chart.x_label));
  return fmt::format("<figure class=\"wide\"><h2>{}</h2>\n<div>{}</div><ul>{}</ul></figure>\n",
                     escape_html(chart.title), svg, legend_of(chart));
}

}  // namespace fsccl::perf
