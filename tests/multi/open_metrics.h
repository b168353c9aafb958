// A strict reader of OpenMetrics 1.0 text, as far as gauges, counters and infos go. Everything that
// it does not know is an error. Families are whole and in one piece, their metadata comes first, no
// sample comes twice, and the text ends in "# EOF".
#pragma once
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <regex>
#include <stdexcept>
#include <string>

namespace fsccl::testing {

class OpenMetrics {
 public:
  using Labels = std::map<std::string, std::string>;
  struct Family {
    std::string type, unit, help;
    std::map<Labels, double> samples;
  };

  // Throws std::runtime_error with the line that is wrong.
  explicit OpenMetrics(const std::string& text) {
    size_t begin = 0;
    bool ended = false;
    while (begin < text.size()) {
      const size_t end = text.find('\n', begin);
      line_ = text.substr(begin, end - begin);
      require(end != std::string::npos, "no end of the line");
      require(!ended, "something follows # EOF");
      ended = line_ == "# EOF";
      if (!ended) line_[0] == '#' ? metadata() : sample();
      begin = end + 1;
    }
    line_ = "the end";
    require(ended, "no # EOF");
  }

  const std::map<std::string, Family>& families() const { return families_; }
  // Returns the value of the one sample of the family that has these labels, among others; nothing
  // if there is none.
  std::optional<double> value(const std::string& family, const Labels& labels) const {
    std::optional<double> found;
    const auto at = families_.find(family);
    if (at == families_.end()) return std::nullopt;
    for (const auto& [its, value] : at->second.samples) {
      bool fits = true;
      for (const auto& [name, wanted] : labels)
        fits = fits && its.contains(name) && its.at(name) == wanted;
      if (!fits) continue;
      if (found) throw std::runtime_error("several samples of " + family);
      found = value;
    }
    return found;
  }

 private:
  void require(bool holds, const char* what) const {
    if (!holds) throw std::runtime_error(std::string(what) + ": " + line_);
  }

  void metadata() {
    static const std::regex form("# (TYPE|UNIT|HELP) ([a-zA-Z_:][a-zA-Z0-9_:]*) (.+)");
    std::smatch part;
    require(std::regex_match(line_, part, form), "no metadata");
    const std::string kind = part[1], name = part[2], text = part[3];
    if (name != present_) {
      require(!families_.contains(name), "a family in two pieces");
      present_ = name;
      families_[name];
    }
    Family& family = families_[name];
    require(family.samples.empty(), "metadata behind a sample");
    std::string& place = kind == "TYPE" ? family.type : kind == "UNIT" ? family.unit : family.help;
    require(place.empty(), "metadata twice");
    place = text;
    if (kind == "TYPE")
      require(text == "gauge" || text == "counter" || text == "info", "an unknown type");
    if (kind == "UNIT") require(name.ends_with("_" + text), "the unit is not the end of the name");
  }

  void sample() {
    static const std::regex form("([a-zA-Z_:][a-zA-Z0-9_:]*)(\\{(.*)\\})? ([0-9]+(\\.[0-9]+)?)");
    std::smatch part;
    require(std::regex_match(line_, part, form), "no sample");
    require(families_.contains(present_), "a sample without a family");
    Family& family = families_[present_];
    require(!family.type.empty() && !family.help.empty(), "a family without a type or a help");
    const std::string suffix = family.type == "counter" ? "_total"
                               : family.type == "info"  ? "_info"
                                                        : "";
    require(part[1] == present_ + suffix, "not the name of the family's samples");
    const double value = std::strtod(part[4].str().c_str(), nullptr);
    require(family.type != "info" || value == 1, "an info is not 1");
    require(family.samples.emplace(labels_of(part[3]), value).second, "a sample twice");
  }

  Labels labels_of(const std::string& text) const {
    static const std::regex form(
        "([a-zA-Z_][a-zA-Z0-9_]*)=\"((?:[^\"\\\\\n]|\\\\[\\\\\"n])*)\"(,|$)");
    Labels labels;
    auto at = text.cbegin();
    for (std::smatch part; at != text.cend(); at = part[0].second) {
      require(
          std::regex_search(at, text.cend(), part, form, std::regex_constants::match_continuous),
          "no label");
      require(part[3].length() == 0 || part[0].second != text.cend(), "a comma at the end");
      std::string value;
      const std::string escaped = part[2];
      for (size_t i = 0; i < escaped.size(); i++)
        value += escaped[i] != '\\' ? escaped[i] : escaped[++i] == 'n' ? '\n' : escaped[i];
      require(labels.emplace(part[1], value).second, "a label twice");
    }
    return labels;
  }

  std::map<std::string, Family> families_;
  std::string present_, line_;
};

}  // namespace fsccl::testing
