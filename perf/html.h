// A self-contained page with text, tables and charts as inline SVG, in light or dark colours as the
// reader prefers, for any width. These are pure functions from values to text. They escape every
// text that they are given.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/program.h"

namespace fsccl::perf {

std::string escape_html(std::string_view text);

constexpr size_t kPageColors = 8;

struct Line {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x ascending
  size_t color = 0;                               // 0 .. kPageColors - 1
  bool dashed = false;
  bool wide = false;    // pale and broad, for a line on which others lie
  bool stairs = false;  // each value holds until the next point
};
enum class Axis { kLinear, kLog, kBytes, kLogBytes };  // bytes have labels in powers of 1024
struct LineChart {
  std::string title, x_label, y_label;
  Axis x = Axis::kLinear, y = Axis::kLinear;
  std::vector<Line> lines;
};
std::string draw(const LineChart& chart);  // "" without a point

// A chart with one horizontal bar for each row. The parts of a bar lie end to end.
struct BarChart {
  std::string title, unit;
  std::vector<std::string> parts;  // names
  struct Row {
    std::string name;
    std::vector<double> values;  // one for each part, none negative
  };
  std::vector<Row> rows;
};
std::string draw(const BarChart& chart);

// A map of memory over time: bands one above the other, each of some bytes, in which rectangles go
// from a first to a last moment and from a first to a last byte. It is as wide as the page.
struct MapChart {
  struct Area {
    size_t band = 0;
    double begin = 0, end = 0;  // values of the x axis
    double low = 0, high = 0;   // bytes of the band
    size_t color = 0;           // 0 .. kPageColors - 1
    bool pale = false;          // a second kind of the same colour
    std::string label, words;   // drawn inside if there is room; shown under the mouse pointer
  };
  struct Band {
    std::string name;
    double bytes = 0;
  };
  struct Key {  // an entry of the legend
    std::string name;
    size_t color = 0;
    bool pale = false;
  };
  std::string title, x_label;
  double x_end = 0;    // x begins at 0
  bool scaled = true;  // bands are labelled with their bytes
  std::vector<Band> bands;
  std::vector<Area> areas;
  std::vector<double> marks;  // moments with a line through all bands
  std::vector<Key> legend;
};
std::string draw(const MapChart& chart);  // "" without a band

struct Table {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;  // columns of figures stand to the right
};
std::string draw(const Table& table);

// `charts` and `tables` are what draw() returned.
std::string make_page(const std::string& title, const std::string& subtitle,
                      const std::vector<std::string>& charts,
                      const std::vector<std::string>& tables);

// The file of a page. It is opened at once, so that a bad path is known before anything is
// measured. An error is printed.
class PageFile {
 public:
  explicit PageFile(const std::string& path);
  bool open() const { return open_; }
  bool write(const std::string& page);

 private:
  OutputFile file_;
  bool open_ = false;
};

}  // namespace fsccl::perf
