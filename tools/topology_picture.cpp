#include "topology_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "numbers.h"

namespace {

using namespace fsccl::machine_graph;

constexpr size_t kMostDrawn = 4;  // hosts of a group
constexpr double kGap = 6, kTitle = 15, kCore = 12, kCoreGap = 2, kWidest = 620, kDeviceWidth = 84,
                 kDeviceHeight = 30;
constexpr double kBarHeight = 16, kLineGap = 4;
constexpr double kCharacter = 5.6;  // approximate width
constexpr size_t kCoresInRow = 16;
constexpr double kLegendWidth = 300, kLegendLine = 14;

struct Frame {
  double x = 0, y = 0, w = 0, h = 0;
};

struct Box {
  int vertex = -1;  // -1 if this box is the cores of the enclosing one
  std::vector<int> cores;
  Frame frame;  // x and y are relative to the enclosing box
  std::vector<Box> inside;
};

const char* fill_of(Kind kind) {
  switch (kind) {
    case Kind::host:
      return "#f7f7f4";
    case Kind::package:
      return "#e8eef6";
    case Kind::numa:
      return "#dce9dc";
    case Kind::cache:
      return "#f6ecd2";
    case Kind::gpu:
      return "#cfe3b4";
    case Kind::nic:
      return "#f3cfc3";
    case Kind::pci:
      return "#ececec";
    default:
      return "#d9d2e9";
  }
}

std::string width(double gb_per_s) {
  return gb_per_s > 0 ? fmt::format("{:.3g} GB/s", gb_per_s) : "? GB/s";
}

// Escapes a text for XML and cuts it to what fits in the width `room`.
std::string escaped(const std::string& text, double room) {
  const auto most = static_cast<size_t>(std::max(3.0, room / kCharacter));
  size_t end = text.size();
  if (end > most)
    // A character of UTF-8 must not be cut.
    for (end = most - 1; end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80; end--) {
    }
  std::string result;
  for (const char c : text.substr(0, end)) {
    if (c == '<' || c == '&' || c == '>' || c == '"')
      result += fmt::format("&#{};", static_cast<int>(c));
    else
      result += c;
  }
  if (end < text.size()) result += "…";
  return result;
}

class Drawing {
 public:
  Drawing(const Graph& graph, int ranks_per_host)
      : ranks_(static_cast<size_t>(ranks_per_host)), graph_(graph) {
    const std::vector<int> hosts = graph.all(Kind::host);
    for (size_t h = 0; h < hosts.size(); h++) seat_ranks(hosts[h], h * ranks_);
  }

  std::string draw() {
    double x = kGap, height = 0;
    for (const std::vector<int>& group : graph_.alike()) {
      for (size_t i = 0; i < std::min(kMostDrawn, group.size()); i++) {
        Box box = measure(group[i]);
        put(box, x, kGap);
        x += box.frame.w + 2 * kGap;
        height = std::max(height, box.frame.h);
      }
      if (group.size() <= kMostDrawn) continue;
      const std::string more = fmt::format("and {} more", group.size() - kMostDrawn);
      text(x, kGap + kTitle, "", more);
      x += 90;
    }
    height = put_switches(height + kGap, std::max(x, 2 * kDeviceWidth));
    for (const Link& link : graph_.links) draw(link);
    height = put_legend(height + kGap);
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"100%\" "
        "font-family=\"sans-serif\" font-size=\"10\">\n<rect width=\"100%\" height=\"100%\" "
        "fill=\"white\"/>\n{2}{3}<g paint-order=\"stroke\" stroke=\"#fff\" stroke-opacity=\".7\" "
        "stroke-width=\"2.5\">\n{4}</g></svg>\n",
        std::max({x, 2 * kDeviceWidth, kLegendWidth}), height + kGap, body_, lines_, texts_);
  }

 private:
  const Vertex& at(int vertex) const { return graph_.vertices[static_cast<size_t>(vertex)]; }

  // Gives ranks first .. first + ranks_ - 1 to the GPUs or the cores of the host.
  void seat_ranks(int host, size_t first) {
    std::vector<int> seats;
    for (const Kind kind : {Kind::gpu, Kind::core})
      if (seats.empty()) find(host, kind, &seats);
    for (size_t r = 0; r < std::min(ranks_, seats.size()); r++)
      rank_of_[seats[r]] = std::to_string(first + r);
  }
  void find(int vertex, Kind kind, std::vector<int>* found) const {
    if (at(vertex).kind == kind) found->push_back(vertex);
    for (const int child : at(vertex).below) find(child, kind, found);
  }

  // Returns the number of the rank that sits on this vertex, or an empty text.
  std::string rank_at(int vertex) const {
    const auto found = rank_of_.find(vertex);
    return found == rank_of_.end() ? "" : found->second;
  }

  std::string title(int vertex) const {
    const Vertex& it = at(vertex);
    std::string text = it.name;
    if (it.bytes) text += fmt::format(" {}", fsccl::perf::format_bytes(it.bytes));
    if (!it.model.empty()) text += fmt::format(" {}", it.model);
    return text;
  }

  double room_for_title(int vertex) const {
    return std::min(kWidest / 2, kCharacter * static_cast<double>(title(vertex).size()) + 3 * kGap);
  }

  // Returns the box of a vertex, with the boxes of its parts placed inside. The caller chooses the
  // position of the box itself.
  Box measure(int vertex) const {
    Box box;
    box.vertex = vertex;
    const Kind kind = at(vertex).kind;
    Box cores;
    for (const int child : at(vertex).below) {
      if (at(child).kind == Kind::core)
        cores.cores.push_back(child);
      else
        box.inside.push_back(measure(child));
    }
    if (!cores.cores.empty()) {
      const size_t columns = std::min(kCoresInRow, cores.cores.size()),
                   rows = (cores.cores.size() + kCoresInRow - 1) / kCoresInRow;
      cores.frame.w = static_cast<double>(columns) * (kCore + kCoreGap);
      cores.frame.h = static_cast<double>(rows) * (kCore + kCoreGap);
      box.inside.insert(box.inside.begin(), std::move(cores));
    }
    if (box.inside.empty()) {
      box.frame.w = kind >= Kind::gpu ? kDeviceWidth : std::max(60.0, room_for_title(vertex));
      box.frame.h = is_bar(kind) ? kBarHeight : kind >= Kind::gpu ? kDeviceHeight : kTitle + kGap;
      return box;
    }
    arrange(&box);
    return box;
  }

  // Places the parts from left to right, in rows: first cores and what contains them, then devices,
  // then switches.
  void arrange(Box* box) const {
    std::stable_sort(box->inside.begin(), box->inside.end(),
                     [&](const Box& a, const Box& b) { return below(a) < below(b); });
    double x = kGap, y = kTitle + kGap, row = 0;
    int rank = 0;
    for (Box& part : box->inside) {
      const bool new_row = x > kGap && (x + part.frame.w > kWidest || below(part) != rank);
      if (new_row) x = kGap, y += row + kGap, row = 0;
      rank = below(part);
      part.frame.x = x;
      part.frame.y = y;
      x += part.frame.w + kGap;
      row = std::max(row, part.frame.h);
      box->frame.w = std::max(box->frame.w, x);
    }
    box->frame.w = std::max(box->frame.w, room_for_title(box->vertex));
    box->frame.h = y + row + kGap;
    stretch(box);
  }

  // Gives a part that is alone in its row the width of the box, so that boxes fill their frames.
  void stretch(Box* box) const {
    for (Box& part : box->inside) {
      const auto beside = std::count_if(box->inside.begin(), box->inside.end(),
                                        [&](const Box& b) { return b.frame.y == part.frame.y; });
      if (part.vertex < 0 || beside > 1) continue;
      part.frame.w = box->frame.w - 2 * kGap;
      stretch(&part);
    }
  }
  static bool is_bar(Kind kind) { return kind == Kind::nv_switch || kind == Kind::network_switch; }
  int below(const Box& box) const {
    return box.vertex < 0 ? 0 : is_bar(at(box.vertex).kind) ? 2 : at(box.vertex).kind >= Kind::pci;
  }

  void put(const Box& box, double x, double y) {
    if (box.vertex < 0) {
      for (size_t i = 0; i < box.cores.size(); i++)
        put_core(box.cores[i], x + static_cast<double>(i % kCoresInRow) * (kCore + kCoreGap),
                 y + static_cast<double>(i / kCoresInRow) * (kCore + kCoreGap));
      return;
    }
    const Vertex& vertex = at(box.vertex);
    frames_[box.vertex] = {x, y, box.frame.w, box.frame.h};
    body_ += fmt::format(
        "<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\" rx=\"3\" fill=\"{}\" "
        "stroke=\"#888\"{}><title>{}</title></rect>\n",
        x, y, box.frame.w, box.frame.h, fill_of(vertex.kind),
        vertex.down ? " stroke-dasharray=\"3\"" : "", escaped(title(box.vertex), 1e6));
    const std::string rank = rank_at(box.vertex);
    const std::string name =
        rank.empty() ? vertex.name : fmt::format("{} rank {}", vertex.name, rank);
    text(x + 4, y + 12, rank.empty() ? "" : " font-weight=\"bold\"",
         escaped(vertex.kind >= Kind::gpu ? name : title(box.vertex), box.frame.w - 8));
    if (vertex.kind >= Kind::gpu && !is_bar(vertex.kind) && (vertex.down || vertex.gb_per_s > 0))
      text(x + 4, y + 24, " fill=\"#555\"", vertex.down ? "down" : width(vertex.gb_per_s));
    for (const Box& part : box.inside) put(part, x + part.frame.x, y + part.frame.y);
  }

  // A core with a rank is darker, and has its number.
  void put_core(int vertex, double x, double y) {
    const std::string rank = rank_at(vertex);
    body_ += fmt::format(
        "<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"{}\" height=\"{}\" fill=\"{}\"><title>{}{}"
        "</title></rect>\n",
        x, y, kCore, kCore, rank.empty() ? "#7b8fa8" : "#2b4a73", escaped(title(vertex), 1e6),
        rank.empty() ? "" : ", rank " + rank);
    if (rank.empty()) return;
    body_ += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{}\" fill=\"white\" "
        "text-anchor=\"middle\">{}</text>\n",
        x + kCore / 2, y + kCore / 2 + 2.5, rank.size() < 3 ? 8 : 5, rank);
  }

  // Writes a text. `words` must be escaped.
  void text(double x, double y, const char* style, const std::string& words) {
    texts_ += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\"{}>{}</text>\n", x, y, style, words);
  }

  // Writes the legend: for each class of links a line with the kinds of its ends and its bandwidth.
  // Returns where the legend ends.
  double put_legend(double y) {
    std::map<std::string, size_t> classes;
    const auto add = [&](Kind a, Kind b, double gb_per_s) {
      if (gb_per_s > 0)
        classes[fmt::format("{} to {}: {}", kind_name(a), kind_name(b), width(gb_per_s))]++;
    };
    for (const Vertex& vertex : graph_.vertices)
      if (vertex.parent >= 0) add(vertex.kind, at(vertex.parent).kind, vertex.gb_per_s);
    for (const Link& link : graph_.links)
      add(std::min(at(link.a).kind, at(link.b).kind), std::max(at(link.a).kind, at(link.b).kind),
          link.gb_per_s);
    for (const auto& [name, count] : classes)
      text(kGap, y += kLegendLine, "",
           fmt::format("{}, {} {}", name, count, count == 1 ? "link" : "links"));
    return y;
  }

  // Draws network switches as bars of the whole width, from y on. Returns where they end.
  double put_switches(double y, double right) {
    for (const int vertex : graph_.all(Kind::network_switch)) {
      y += kGap;
      Box bar;
      bar.vertex = vertex;
      bar.frame.w = right - 2 * kGap;
      bar.frame.h = kBarHeight;
      put(bar, kGap, y);
      y += kBarHeight;
    }
    return y;
  }

  // Draws a link as a line down from the higher one of its ends. Lines are shifted, so that lines
  // from one place, or from places above each other, lie side by side.
  void draw(const Link& link) {
    const auto a = frames_.find(link.a), b = frames_.find(link.b);
    if (a == frames_.end() || b == frames_.end()) return;  // an end on a host that is not drawn
    const bool a_above = a->second.y <= b->second.y;
    const Frame &upper = a_above ? a->second : b->second, &lower = a_above ? b->second : a->second;
    const double room = upper.w / 2 - kGap;  // on the right, as names are on the left
    const double x =
        upper.x + upper.w - kGap - std::fmod(kLineGap * static_cast<double>(drawn_++), room);
    const double end = lower.y + lower.h / 2;
    lines_ += fmt::format(
        "<g stroke=\"#a35\" fill=\"#a35\" opacity=\".6\"><title>{} - {}, {}</title><line "
        "x1=\"{:.0f}\" y1=\"{:.0f}\" "
        "x2=\"{:.0f}\" y2=\"{:.0f}\"/><circle cx=\"{:.0f}\" cy=\"{:.0f}\" r=\"2.5\"/></g>\n",
        escaped(at(link.a).path, 1e6), escaped(at(link.b).path, 1e6), width(link.gb_per_s), x,
        upper.y + upper.h, x, end, x, end);
  }

  std::string lines_, texts_;
  size_t drawn_ = 0;
  const size_t ranks_;  // on each host
  std::map<int, std::string> rank_of_;
  const Graph& graph_;
  std::string body_;
  std::map<int, Frame> frames_;
};

}  // namespace

std::string topology_picture(const Graph& graph, int ranks_per_host) {
  return Drawing(graph, ranks_per_host).draw();
}
