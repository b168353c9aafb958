// The charts of html.h. Their viewBox is about as wide as a phone, so that text keeps its size there and grows a little elsewhere.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "html.h"

namespace fsccl::perf {
namespace {

constexpr double kWidth = 420, kHeight = 260, kLeft = 52, kRight = 8, kTop = 8, kBottom = 38;

bool logarithmic(Axis axis) { return axis == Axis::kLog || axis == Axis::kLogBytes; }
bool in_bytes(Axis axis) { return axis == Axis::kBytes || axis == Axis::kLogBytes; }

std::string short_number(double value) {
  if (value == 0) return "0";
  static constexpr std::pair<double, const char*> kUnits[] = {{1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
  for (const auto& [size, unit] : kUnits)
    if (std::fabs(value) >= size) return fmt::format("{:.3g}{}", value / size, unit);
  return fmt::format("{:.3g}", value);
}
std::string short_bytes(double value) {
  static constexpr const char* kUnits[] = {"", "K", "M", "G", "T", "P"};
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) value /= 1024, unit++;
  return fmt::format("{:.3g}{}", value, kUnits[unit]);
}

// Maps values to places and chooses where the labels stand.
class Scale {
 public:
  Scale(Axis axis, double low, double high, double begin, double end) : axis_(axis), begin_(begin), end_(end) {
    if (logarithmic(axis)) {
      const double base = in_bytes(axis) ? 2 : 10;
      low_ = std::floor(std::log(low) / std::log(base) + 1e-9), high_ = std::ceil(std::log(high) / std::log(base) - 1e-9);
      if (high_ <= low_) high_ = low_ + 1;
      const double step = std::ceil((high_ - low_) / 7);
      for (double power = low_; power <= high_; power += step) ticks_.push_back(std::pow(base, power));
      base_ = base;
      return;
    }
    const double base = in_bytes(axis) ? 2 : 10, wanted = std::max(high, 1e-9) / 4;
    double step = std::pow(base, std::floor(std::log(wanted) / std::log(base)));
    if (!in_bytes(axis))
      step *= wanted > 5 * step ? 10 : wanted > 2 * step ? 5 : wanted > step ? 2 : 1;
    else if (wanted > step)
      step *= 2;
    low_ = 0, high_ = std::max(step, std::ceil(high / step - 1e-9) * step);
    for (double at = 0; at <= high_ + step / 2; at += step) ticks_.push_back(at);
  }
  double place(double value) const {
    const double at = logarithmic(axis_) ? std::log(std::max(value, 1e-12)) / std::log(base_) : value;
    return begin_ + (end_ - begin_) * std::clamp((at - low_) / (high_ - low_), 0.0, 1.0);
  }
  const std::vector<double>& ticks() const { return ticks_; }
  std::string label(double value) const { return in_bytes(axis_) ? short_bytes(value) : short_number(value); }

 private:
  Axis axis_;
  double begin_, end_, low_ = 0, high_ = 1, base_ = 10;
  std::vector<double> ticks_;
};

std::string swatch(size_t color, bool dashed, bool wide = false) {
  return fmt::format(
      "<svg viewBox=\"0 0 20 10\" aria-hidden=\"true\"><path d=\"M0 5H20\" style=\"stroke:var(--c{});stroke-width:{}\"{}/></svg>",
      color % kPageColors, wide ? "8;opacity:.4" : "4", dashed ? " stroke-dasharray=\"5 3\"" : "");
}

std::string figure(const std::string& title, const std::string& svg, const std::string& legend) {
  return fmt::format("<figure><h2>{}</h2>\n{}<ul>{}</ul></figure>\n", escape_html(title), svg, legend);
}

std::string open_svg(double height, const std::string& title) {
  return fmt::format("<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">\n", kWidth, height, escape_html(title));
}

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
    svg +=
        fmt::format("<path class=\"axis\" d=\"M{0} {1:.1f}H{2}\"/><text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>\n",
                    kLeft, y.place(tick), kWidth - kRight, kLeft - 5, y.place(tick) + 4, y.label(tick));
  for (const double tick : x.ticks())
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x.place(tick), bottom + 15, x.label(tick));
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", (kLeft + kWidth - kRight) / 2, kHeight - 6,
                     escape_html(chart.x_label));
  return svg + fmt::format("<text transform=\"translate(11 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                           (kTop + bottom) / 2, escape_html(chart.y_label));
}

}  // namespace

std::string draw(const LineChart& chart) {
  double low_x = INFINITY, high_x = -INFINITY, low_y = INFINITY, high_y = -INFINITY;
  for (const Line& line : chart.lines)
    for (const auto& [x, y] : line.points) {
      if ((logarithmic(chart.x) && x <= 0) || (logarithmic(chart.y) && y <= 0)) continue;
      low_x = std::min(low_x, x), high_x = std::max(high_x, x), low_y = std::min(low_y, y), high_y = std::max(high_y, y);
    }
  if (low_x > high_x) return {};
  const Scale x(chart.x, low_x, high_x, kLeft, kWidth - kRight), y(chart.y, low_y, high_y, kHeight - kBottom, kTop);
  std::string svg = open_svg(kHeight, chart.title) + grid(chart, x, y), legend;
  for (const Line& line : chart.lines) {
    if (line.points.empty()) continue;
    const size_t color = line.color % kPageColors;
    svg += fmt::format("<path class=\"line{}\" style=\"stroke:var(--c{})\"{} d=\"{}\"/>\n", line.wide ? " wide" : "", color,
                       line.dashed ? " stroke-dasharray=\"5 3\"" : "", path_of(line, x, y));
    if (line.points.size() == 1)
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" style=\"fill:var(--c{})\"/>\n",
                         x.place(line.points[0].first), y.place(line.points[0].second), color);
    legend += fmt::format("<li>{}{}</li>", swatch(color, line.dashed, line.wide), escape_html(line.name));
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
  const double height = kTop + kRow * static_cast<double>(chart.rows.size()) + kBottom, bottom = height - kBottom;
  const Scale x(Axis::kLinear, 0, most, kLeft, kWidth - kRight - 12);
  std::string svg = open_svg(height, chart.title), legend;
  for (const double tick : x.ticks())
    svg += fmt::format(
        "<path class=\"axis\" d=\"M{0:.1f} {1}V{2}\"/><text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4}</text>\n",
        x.place(tick), kTop, bottom, bottom + 15, x.label(tick));
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", (kLeft + kWidth) / 2, height - 6,
                     escape_html(chart.unit));
  double top = kTop + (kRow - kBar) / 2;
  for (const BarChart::Row& row : chart.rows) {
    svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kLeft - 5, top + 13, escape_html(row.name));
    double sum = 0;
    for (size_t i = 0; i < row.values.size(); i++) {
      const double begin = x.place(sum), end = x.place(sum += row.values[i]);
      if (end - begin < 0.05) continue;
      svg += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" style=\"fill:var(--c{})\"><title>{}: {}</title></rect>\n",
          begin, top, end - begin, kBar, i % kPageColors, escape_html(i < chart.parts.size() ? chart.parts[i] : ""),
          short_number(row.values[i]));
    }
    top += kRow;
  }
  for (size_t i = 0; i < chart.parts.size(); i++)
    legend += fmt::format("<li>{}{}</li>", swatch(i, false), escape_html(chart.parts[i]));
  return figure(chart.title, svg + "</svg>\n", legend);
}

}  // namespace fsccl::perf
