// The charts of html.h. Their viewBox is about as wide as a phone, so that text keeps its size
// there and grows a little elsewhere.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "chart_scale.h"

namespace fsccl::perf {
namespace {

constexpr double kWidth = 420, kHeight = 260, kLeft = 52, kRight = 8, kTop = 8, kBottom = 38;

std::string path_of(const Line& line, const Scale& x, const Scale& y) {
  std::string path;
  double before = 0;
  for (const auto& [at, value] : line.points) {
    if (path.empty()) {
      path = fmt::format("M{:.1f} {:.1f}", x.place(at), y.place(value));
    } else {
      if (line.stairs) path += fmt::format("L{:.1f} {:.1f}", x.place(at), y.place(before));
      path += fmt::format("L{:.1f} {:.1f}", x.place(at), y.place(value));
    }
    before = value;
  }
  return path;
}

std::string grid(const LineChart& chart, const Scale& x, const Scale& y) {
  const double bottom = kHeight - kBottom;
  std::string svg;
  for (const double tick : y.ticks())
    svg += fmt::format(
        "<path class=\"axis\" d=\"M{0} {1:.1f}H{2}\"/><text x=\"{3}\" y=\"{4:.1f}\" "
        "text-anchor=\"end\">{5}</text>\n",
        kLeft, y.place(tick), kWidth - kRight, kLeft - 5, y.place(tick) + 4, y.label(tick));
  for (const double tick : x.ticks())
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                       x.place(tick), bottom + 15, x.label(tick));
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                     (kLeft + kWidth - kRight) / 2, kHeight - 6, escape_html(chart.x_label));
  return svg +
         fmt::format(
             "<text transform=\"translate(11 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
             (kTop + bottom) / 2, escape_html(chart.y_label));
}

}  // namespace

std::string draw(const LineChart& chart) {
  double low_x = INFINITY, high_x = -INFINITY, low_y = INFINITY, high_y = -INFINITY;
  for (const Line& line : chart.lines)
    for (const auto& [x, y] : line.points) {
      if ((logarithmic(chart.x) && x <= 0) || (logarithmic(chart.y) && y <= 0)) continue;
      low_x = std::min(low_x, x), high_x = std::max(high_x, x), low_y = std::min(low_y, y),
      high_y = std::max(high_y, y);
    }
  if (low_x > high_x) return {};
  const Scale x(chart.x, low_x, high_x, kLeft, kWidth - kRight, Scale::End::kExact),
      y(chart.y, low_y, high_y, kHeight - kBottom, kTop);
  std::string svg = open_svg(kWidth, kHeight, chart.title) + grid(chart, x, y), legend;
  for (const Line& line : chart.lines) {
    if (line.points.empty()) continue;
    const size_t color = line.color % kPageColors;
    svg += fmt::format("<path class=\"line{}\" style=\"stroke:var(--c{})\"{} d=\"{}\"/>\n",
                       line.wide ? " wide" : "", color,
                       line.dashed ? " stroke-dasharray=\"5 3\"" : "", path_of(line, x, y));
    if (line.points.size() == 1)
      svg +=
          fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" style=\"fill:var(--c{})\"/>\n",
                      x.place(line.points[0].first), y.place(line.points[0].second), color);
    legend +=
        fmt::format("<li>{}{}</li>", swatch(color, line.dashed, line.wide), escape_html(line.name));
  }
  return figure(chart.title, svg + "</svg>\n", legend);
}

std::string draw(const BarChart& chart) {
  constexpr double kBar = 18, kRow = 26;
  double most = 0;
  for (const BarChart::Row& row : chart.rows) {
    double sum = 0;
    for (const double value : row.values) sum += value;
    most = std::max(most, sum);
  }
  if (most <= 0) return {};
  const double height = kTop + kRow * static_cast<double>(chart.rows.size()) + kBottom,
               bottom = height - kBottom;
  const Scale x(Axis::kLinear, 0, most, kLeft, kWidth - kRight - 12);
  std::string svg = open_svg(kWidth, height, chart.title), legend;
  for (const double tick : x.ticks())
    svg += fmt::format(
        "<path class=\"axis\" d=\"M{0:.1f} {1}V{2}\"/><text x=\"{0:.1f}\" y=\"{3}\" "
        "text-anchor=\"middle\">{4}</text>\n",
        x.place(tick), kTop, bottom, bottom + 15, x.label(tick));
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                     (kLeft + kWidth) / 2, height - 6, escape_html(chart.unit));
  double top = kTop + (kRow - kBar) / 2;
  for (const BarChart::Row& row : chart.rows) {
    svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kLeft - 5,
                       top + 13, escape_html(row.name));
    double sum = 0;
    for (size_t i = 0; i < row.values.size(); i++) {
      const double begin = x.place(sum), end = x.place(sum += row.values[i]);
      if (end - begin < 0.05) continue;
      svg += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" "
          "style=\"fill:var(--c{})\"><title>{}: {}</title></rect>\n",
          begin, top, end - begin, kBar, i % kPageColors,
          escape_html(i < chart.parts.size() ? chart.parts[i] : ""), short_number(row.values[i]));
    }
    top += kRow;
  }
  for (size_t i = 0; i < chart.parts.size(); i++)
    legend += fmt::format("<li>{}{}</li>", swatch(i, false), escape_html(chart.parts[i]));
  return figure(chart.title, svg + "</svg>\n", legend);
}

}  // namespace fsccl::perf
