#include "html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace fsccl::perf {
namespace {

// Colours of both schemes differ enough in lightness to be told apart without hue.
constexpr const char* kStyle = R"(
:root{color-scheme:light dark;--back:#fff;--card:#f6f7f9;--text:#1c2128;--soft:#5b6470;
--line:#d5dae1;
--c0:#1f6feb;--c1:#d9480f;--c2:#2b8a3e;--c3:#9c36b5;--c4:#b08900;--c5:#0b7285;--c6:#c2255c;
--c7:#6b7280}
@media(prefers-color-scheme:dark){:root{--back:#101418;--card:#181d23;--text:#e6e9ee;
--soft:#9aa4b1;--line:#333b45;
--c0:#6cb0ff;--c1:#ff9a5c;--c2:#69db7c;--c3:#da94f0;--c4:#f5cb4b;--c5:#5fd3e6;--c6:#ff8cb4;
--c7:#a3acb8}}
*{box-sizing:border-box}body{margin:0 auto;padding:1rem;max-width:76rem;background:var(--back);
color:var(--text);
font:16px/1.45 system-ui,sans-serif}h1{font-size:1.4rem;margin:.2rem 0}h2{font-size:1rem;
margin:0 0 .4rem}
p{margin:.2rem 0 1rem;color:var(--soft);overflow-wrap:anywhere}
.charts{columns:26rem 2;column-gap:1rem}.charts>*{break-inside:avoid}
figure.wide{column-span:all}figure.wide>div{overflow-x:auto}figure.wide>div>svg{min-width:58rem}
svg .area{stroke:var(--card);stroke-width:.6}svg .pale{fill-opacity:.45}
svg .mark{stroke:var(--soft);stroke-dasharray:2 3;fill:none}
svg .band{fill:var(--back);stroke:var(--line)}svg text.in{fill:var(--back);font-weight:600;
pointer-events:none}
svg text.pale-in{fill:var(--text);pointer-events:none}
figure,.table{margin:0 0 1rem;padding:.8rem;background:var(--card);border:1px solid var(--line);
border-radius:8px}
.table{overflow-x:auto}
svg{display:block;width:100%;height:auto;overflow:visible}
svg text{fill:var(--soft);font:11px system-ui,sans-serif}svg .axis{stroke:var(--line);fill:none}
svg .line{fill:none;stroke-width:2;stroke-linejoin:round}svg .wide{stroke-width:7;opacity:.4}
ul{list-style:none;margin:.5rem 0 0;padding:0;display:flex;flex-wrap:wrap;
gap:.15rem .9rem;font-size:.85rem}li{display:flex;align-items:center;gap:.35rem}li svg{width:20px;
height:10px;flex:none}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:.2rem .6rem;border-bottom:1px solid var(--line);text-align:left;white-space:nowrap}
td.n,th.n{text-align:right}
)";

// Returns true if a text is a figure. A column of figures is aligned to the right.
bool is_figure(const std::string& text) {
  const size_t first = text.starts_with('-') ? 1 : 0;
  return text.size() > first && text[first] >= '0' && text[first] <= '9';
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string result;
  for (const char letter : text) {
    switch (letter) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        // A page may contain no control characters, which would have no meaning there.
        result += static_cast<unsigned char>(letter) < 0x20 || letter == 0x7F ? ' ' : letter;
    }
  }
  return result;
}

std::string draw(const Table& table) {
  std::vector<const char*> sides(table.head.size(), "");
  for (size_t i = 0; i < sides.size(); i++)
    if (std::all_of(table.rows.begin(), table.rows.end(),
                    [&](const auto& row) { return i < row.size() && is_figure(row[i]); }))
      sides[i] = " class=\"n\"";
  std::string html = "<div class=\"table\"><table><thead><tr>";
  for (size_t i = 0; i < sides.size(); i++)
    html += fmt::format("<th{}>{}</th>", sides[i], escape_html(table.head[i]));
  html += "</tr></thead><tbody>\n";
  for (const auto& row : table.rows) {
    html += "<tr>";
    for (size_t i = 0; i < row.size() && i < sides.size(); i++)
      html += fmt::format("<td{}>{}</td>", sides[i], escape_html(row[i]));
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string make_page(const std::string& title, const std::string& subtitle,
                      const std::vector<std::string>& charts,
                      const std::vector<std::string>& tables) {
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\">\n<title>{0}</title>\n<style>{1}</style></"
      "head>\n"
      "<body><h1>{0}</h1>\n<p>{2}</p>\n<div class=\"charts\">\n",
      escape_html(title), kStyle, escape_html(subtitle));
  for (const std::string& chart : charts) html += chart;
  html += "</div>\n";
  for (const std::string& table : tables) html += table;
  return html + "</body></html>\n";
}

namespace {
bool is_well(const Status& status) {
  if (!status.ok())
    fmt::print(stderr, "{}: --report {}\n", program_invocation_short_name, status.text());
  return status.ok();
}
}  // namespace

PageFile::PageFile(const std::string& path) { open_ = is_well(file_.open(path)); }

bool PageFile::write(const std::string& page) { return is_well(file_.write(page)); }

}  // namespace fsccl::perf
