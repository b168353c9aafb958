// The common parts of the charts of html.h: a scale with its labels, and the frame of a figure.
#pragma once
#include <cmath>
#include <string>
#include <vector>

#include "html.h"

namespace fsccl::perf {

inline bool logarithmic(Axis axis) { return axis == Axis::kLog || axis == Axis::kLogBytes; }
inline bool in_bytes(Axis axis) { return axis == Axis::kBytes || axis == Axis::kLogBytes; }
std::string short_number(double value);
std::string short_bytes(double value);

// Maps values to places, and chooses the places of the labels.
class Scale {
 public:
  // Linear scales begin at 0. They end at a round number or, which suits an axis of time, at `high`
  // itself.
  enum class End { kRound, kExact };
  Scale(Axis axis, double low, double high, double begin, double end, End where = End::kRound);
  double place(double value) const;
  const std::vector<double>& ticks() const { return ticks_; }
  std::string label(double value) const {
    return in_bytes(axis_) ? short_bytes(value) : short_number(value);
  }

 private:
  void span_decades(double low, double high);

  Axis axis_;
  double begin_, end_, low_ = 0, high_ = 1, base_ = 10;
  std::vector<double> ticks_;
};

// Draws the piece of a line with which an entry of a legend begins.
std::string swatch(size_t color, bool dashed, bool wide = false);
std::string open_svg(double width, double height, const std::string& title);
std::string figure(const std::string& title, const std::string& svg, const std::string& legend);

}  // namespace fsccl::perf
