#include "chart_scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace fsccl::perf {

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

namespace {

constexpr double kRoundings = 1e-9;  // the error of a logarithm

// Returns the greatest round number, that is 1, 2 or 5 times a power of ten, not above `value`.
double round_down(double value) {
  const double power = std::pow(10, std::floor(std::log10(value) + kRoundings));
  for (const double times : {5, 2})
    if (times * power <= value * (1 + kRoundings)) return times * power;
  return power;
}
// Returns the next round number.
double next_round(double round) {
  const double power = std::pow(10, std::floor(std::log10(round) + kRoundings));
  const double times = std::round(round / power);
  return times == 1 ? 2 * power : times == 2 ? 5 * power : 10 * power;
}

}  // namespace

// Makes the scale end at the round numbers next to the values. If there are few round numbers, each
// gets a label; otherwise powers of ten do.
void Scale::span_decades(double low, double high) {
  std::vector<double> rounds{round_down(low)};
  do rounds.push_back(next_round(rounds.back()));
  while (rounds.back() < high * (1 - kRoundings));
  low_ = std::log10(rounds.front()), high_ = std::log10(rounds.back());
  constexpr size_t kMostTicks = 7;
  if (rounds.size() > kMostTicks) {
    const double first = std::ceil(low_ - kRoundings), last = std::floor(high_ + kRoundings);
    const double step = std::ceil((last - first) / kMostTicks);
    rounds.clear();
    for (double power = first; power <= last; power += step) rounds.push_back(std::pow(10, power));
  }
  ticks_ = std::move(rounds);
}

Scale::Scale(Axis axis, double low, double high, double begin, double end, End where)
    : axis_(axis), begin_(begin), end_(end) {
  if (axis == Axis::kLog) {
    span_decades(low, high);
    return;
  }
  if (axis == Axis::kLogBytes) {
    base_ = 2;
    low_ = std::floor(std::log2(low) + kRoundings), high_ = std::ceil(std::log2(high) - kRoundings);
    if (high_ <= low_) high_ = low_ + 1;
    const double step = std::ceil((high_ - low_) / 7);
    for (double power = low_; power <= high_; power += step) ticks_.push_back(std::exp2(power));
    return;
  }
  const double base = in_bytes(axis) ? 2 : 10, wanted = std::max(high, 1e-9) / 4;
  double step = std::pow(base, std::floor(std::log(wanted) / std::log(base)));
  if (!in_bytes(axis))
    step *= wanted > 5 * step ? 10 : wanted > 2 * step ? 5 : wanted > step ? 2 : 1;
  else if (wanted > step)
    step *= 2;
  high_ = std::max(step, std::ceil(high / step - 1e-9) * step);
  if (where == End::kExact && high > 0) high_ = high;
  for (double at = 0; at <= high_ + step * 1e-6; at += step) ticks_.push_back(at);
}

double Scale::place(double value) const {
  const double at = logarithmic(axis_) ? std::log(std::max(value, 1e-12)) / std::log(base_) : value;
  return begin_ + (end_ - begin_) * std::clamp((at - low_) / (high_ - low_), 0.0, 1.0);
}

std::string swatch(size_t color, bool dashed, bool wide) {
  return fmt::format(
      "<svg viewBox=\"0 0 20 10\" aria-hidden=\"true\"><path d=\"M0 5H20\" "
      "style=\"stroke:var(--c{});stroke-width:{}\"{}/></svg>",
      color % kPageColors, wide ? "8;opacity:.4" : "4", dashed ? " stroke-dasharray=\"5 3\"" : "");
}

std::string figure(const std::string& title, const std::string& svg, const std::string& legend) {
  return fmt::format("<figure><h2>{}</h2>\n{}<ul>{}</ul></figure>\n", escape_html(title), svg,
                     legend);
}

std::string open_svg(double width, double height, const std::string& title) {
  return fmt::format("<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">\n", width,
                     height, escape_html(title));
}

}  // namespace fsccl::perf
