#include "topo/hwloc_xml.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <utility>

#include "base/ascii.h"

namespace fsccl::topo {
namespace {

constexpr size_t kMostObjects = 100'000;
constexpr size_t kMostXmlDepth = 32;  // nested elements, as many as in the JSON of a topology
constexpr unsigned kMostIndex = 1u << 20;

using Attributes = std::map<std::string, std::string, std::less<>>;

constexpr std::pair<const char*, hwloc_obj_type_t> kTypes[] = {
    {"Machine", HWLOC_OBJ_MACHINE},   {"System", HWLOC_OBJ_MACHINE},
    {"Package", HWLOC_OBJ_PACKAGE},   {"Socket", HWLOC_OBJ_PACKAGE},
    {"Die", HWLOC_OBJ_DIE},           {"Group", HWLOC_OBJ_GROUP},
    {"Core", HWLOC_OBJ_CORE},         {"PU", HWLOC_OBJ_PU},
    {"L1Cache", HWLOC_OBJ_L1CACHE},   {"L2Cache", HWLOC_OBJ_L2CACHE},
    {"L3Cache", HWLOC_OBJ_L3CACHE},   {"L4Cache", HWLOC_OBJ_L4CACHE},
    {"L5Cache", HWLOC_OBJ_L5CACHE},   {"L1iCache", HWLOC_OBJ_L1ICACHE},
    {"L2iCache", HWLOC_OBJ_L2ICACHE}, {"L3iCache", HWLOC_OBJ_L3ICACHE},
    {"NUMANode", HWLOC_OBJ_NUMANODE}, {"MemCache", HWLOC_OBJ_MEMCACHE},
    {"Bridge", HWLOC_OBJ_BRIDGE},     {"PCIDev", HWLOC_OBJ_PCI_DEVICE},
    {"OSDev", HWLOC_OBJ_OS_DEVICE},   {"Misc", HWLOC_OBJ_MISC}};

bool is_memory(hwloc_obj_type_t type) {
  return type == HWLOC_OBJ_NUMANODE || type == HWLOC_OBJ_MEMCACHE;
}
bool is_io(hwloc_obj_type_t type) {
  return type == HWLOC_OBJ_BRIDGE || type == HWLOC_OBJ_PCI_DEVICE || type == HWLOC_OBJ_OS_DEVICE;
}
bool is_cache(hwloc_obj_type_t type) {
  return type >= HWLOC_OBJ_L1CACHE && type <= HWLOC_OBJ_L3ICACHE;
}

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_name(char c) {
  return ascii::is_alphanumeric(c) || c == '_' || c == '-' || c == '.' || c == ':';
}

// Returns whether the text is a set as hwloc writes it: words of up to 32 bits in hexadecimal, the
// highest first. "0xf...f" before them stands for all higher bits.
bool is_set(std::string_view text) {
  if (text.empty()) return false;
  if (text.starts_with("0xf...f")) {
    text.remove_prefix(7);
    if (text.empty()) return true;
    if (text.front() != ',') return false;
    text.remove_prefix(1);
  }
  for (;;) {
    const size_t comma = std::min(text.find(','), text.size());
    std::string_view word = text.substr(0, comma);
    if (word.starts_with("0x")) word.remove_prefix(2);
    if (word.size() > 8 || word.find_first_not_of("0123456789abcdefABCDEF") != word.npos)
      return false;
    if (comma == text.size()) return true;
    text.remove_prefix(comma + 1);
  }
}

template <class Number>
bool read_number(const std::string& text, Number most, Number* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size() && *number <= most;
}

}  // namespace

class HwlocXmlReader {
 public:
  HwlocXmlReader(std::string_view text, const std::string& source) : text_(text), source_(source) {}

  Result<HwlocXml> read() {
    while (next_tag()) {
    }
    if (problem_.empty() && !open_.empty()) wrong("it ends within <{}>", open_.back().name);
    if (problem_.empty() && made_.objects_.empty()) wrong("there is no object of type Machine");
    if (problem_.empty() && !processors_) wrong("there is no processor (an object of type PU)");
    if (!problem_.empty())
      return fail(FSCCL_ERR_INVALID_ARGUMENT,
                  "{}, line {}: {}: it is not what hwloc writes (`lstopo file.xml`)", source_,
                  line(), problem_);
    return std::move(made_);
  }

 private:
  using Object = HwlocXml::Object;
  struct Element {
    std::string name;
    Object* object = nullptr;  // below which its children hang; null: they are not looked at
  };

  template <class... Args>
  bool wrong(fmt::format_string<Args...> text, Args&&... args) {
    problem_ = fmt::format(text, std::forward<Args>(args)...);
    return false;
  }
  ptrdiff_t line() const {
    return 1 + std::count(text_.begin(),
                          text_.begin() + static_cast<ptrdiff_t>(std::min(at_, text_.size())),
                          '\n');
  }

  // ---- XML

  bool skip_past(std::string_view end, const char* what) {
    const size_t found = text_.find(end, at_);
    if (found == text_.npos) return wrong("{} does not end", what);
    at_ = found + end.size();
    return true;
  }
  void skip_spaces() {
    while (at_ < text_.size() && is_space(text_[at_])) at_++;
  }
  std::string word() {
    const size_t begin = at_;
    while (at_ < text_.size() && is_name(text_[at_])) at_++;
    return std::string(text_.substr(begin, at_ - begin));
  }

  // Returns false at the end or after an error.
  bool next_tag() {
    const size_t begin = std::min(text_.find('<', at_), text_.size());
    const std::string_view between = text_.substr(at_, begin - at_);
    if (open_.empty() && !std::all_of(between.begin(), between.end(), is_space))
      return wrong("there is text outside of <topology>");
    at_ = begin;
    if (at_ == text_.size()) return false;
    if (text_.substr(at_).starts_with("<!--")) return skip_past("-->", "a comment");
    if (text_.substr(at_).starts_with("<?")) return skip_past("?>", "an instruction");
    if (text_.substr(at_).starts_with("<!")) return skip_past(">", "a declaration");
    at_++;
    const bool ends = at_ < text_.size() && text_[at_] == '/';
    if (ends) at_++;
    const std::string name = word();
    if (name.empty()) return wrong("a tag has no name");
    if (!ends) return begin_element(name);
    skip_spaces();
    if (open_.empty() || open_.back().name != name)
      return wrong("</{}> ends nothing that is open", name);
    open_.pop_back();
    return character('>');
  }
  bool character(char wanted) {
    if (at_ >= text_.size() || text_[at_] != wanted) return wrong("there must be a '{}'", wanted);
    at_++;
    return true;
  }

  bool begin_element(const std::string& name) {
    Attributes attributes;
    for (skip_spaces(); at_ < text_.size() && is_name(text_[at_]); skip_spaces())
      if (!attribute(&attributes)) return false;
    const bool whole = at_ < text_.size() && text_[at_] == '/';
    if (whole) at_++;
    if (!character('>')) return false;
    if (open_.size() >= kMostXmlDepth)
      return wrong("elements are nested deeper than {}", kMostXmlDepth);
    Element element{name, nullptr};
    if (!take(attributes, &element)) return false;
    if (!whole) open_.push_back(std::move(element));
    return true;
  }
  bool attribute(Attributes* attributes) {
    const std::string name = word();
    skip_spaces();
    if (!character('=')) return false;
    skip_spaces();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '"' && quote != '\'') return wrong("the value of {} is not in quotes", name);
    const size_t begin = ++at_;
    if (!skip_past({&quote, 1}, "a value")) return false;
    std::optional<std::string> value = decoded(text_.substr(begin, at_ - 1 - begin));
    if (!value) return wrong("the value of {} has a '<', or a '&' that begins no character", name);
    if (!attributes->emplace(name, std::move(*value)).second)
      return wrong("there are two {}", name);
    return true;
  }
  static std::optional<std::string> decoded(std::string_view text) {
    constexpr std::pair<std::string_view, char> kNamed[] = {
        {"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
    std::string result;
    while (!text.empty()) {
      const char first = text.front();
      text.remove_prefix(1);
      if (first == '<' || first == '\0') return std::nullopt;
      if (first != '&') {
        result += first;
        continue;
      }
      const size_t end = text.find(';');
      if (end == text.npos) return std::nullopt;
      const std::string_view name = text.substr(0, end);
      const auto* found = std::find_if(std::begin(kNamed), std::end(kNamed),
                                       [&](const auto& one) { return one.first == name; });
      unsigned number = 0;
      if (found != std::end(kNamed))
        result += found->second;
      else if (name.starts_with('#') && read_number(std::string(name.substr(1)), 127u, &number) &&
               number > 0)
        result += static_cast<char>(number);  // hwloc writes others as they are
      else
        return std::nullopt;
      text.remove_prefix(end + 1);
    }
    return result;
  }

  // ---- hwloc

  // Reads the attributes of an element. Unknown elements and their contents are skipped, because
  // they say nothing about distance.
  bool take(const Attributes& attributes, Element* element) {
    if (open_.empty()) return begin_topology(attributes, *element);
    Object* const parent = open_.back().object;
    if (element->name == "object") {
      if (!parent && open_.size() > 1) return wrong("an object is in <{}>", open_.back().name);
      return object(attributes, parent, element);
    }
    if (element->name == "info" && parent) return info(attributes, *parent);
    return true;
  }
  bool begin_topology(const Attributes& attributes, const Element& element) {
    if (element.name != "topology" || std::exchange(begun_, true))
      return wrong("<{}> stands where one <topology> must be", element.name);
    const auto version = attributes.find("version");
    if (version == attributes.end()) return true;  // hwloc 1 writes no version
    unsigned major = 0;
    if (!read_number(version->second.substr(0, version->second.find('.')), 2u, &major))
      return wrong("version \"{}\" is not known", version->second);
    sets_of_memory_ = major == 2;
    return true;
  }
  bool info(const Attributes& attributes, Object& of) {
    const auto name = attributes.find("name"), value = attributes.find("value");
    if (name == attributes.end() || value == attributes.end())
      return wrong("an info has no name or no value");
    of.infos.push_back({kept(name->second), kept(value->second)});
    of.object.infos = of.infos.data();
    of.object.infos_count = static_cast<unsigned>(of.infos.size());
    return true;
  }
  char* kept(const std::string& text) { return made_.texts_.emplace_back(text).data(); }

  bool object(const Attributes& attributes, Object* parent, Element* element) {
    const auto named = attributes.find("type");
    if (named == attributes.end()) return wrong("an object has no type");
    hwloc_obj_type_t type = HWLOC_OBJ_TYPE_MAX;
    for (const auto& [name, known] : kTypes)
      if (named->second == name) type = known;
    unsigned depth = 0;
    if (named->second == "Cache" && number(attributes, "depth", 5u, &depth) && depth > 0)
      type = static_cast<hwloc_obj_type_t>(HWLOC_OBJ_L1CACHE + depth - 1);
    if (!problem_.empty()) return false;
    if (type == HWLOC_OBJ_TYPE_MAX)
      return wrong("type \"{}\" of an object is not known", named->second);
    if (made_.objects_.size() >= kMostObjects)
      return wrong("there are more than {} objects", kMostObjects);
    if ((type == HWLOC_OBJ_MACHINE) != made_.objects_.empty())
      return wrong("the first object, and no other, must be the Machine");
    if (!check_sets(attributes, type, named->second)) return false;
    Object& made = make(type);
    element->object = &made;
    return fill(attributes, made) && (!parent || hang(*parent, made, element));
  }
  Object& make(hwloc_obj_type_t type) {
    Object& made = made_.objects_.emplace_back();
    made.object.type = type;
    made.object.os_index = HWLOC_UNKNOWN_INDEX;
    made.object.attr = &made.attributes;
    return made;
  }
  bool check_sets(const Attributes& attributes, hwloc_obj_type_t type, const std::string& name) {
    if (is_io(type) || type == HWLOC_OBJ_MISC) return true;
    for (const std::string_view key :
         {"cpuset", "complete_cpuset", "nodeset", "complete_nodeset"}) {
      const auto found = attributes.find(key);
      if (found == attributes.end() && (sets_of_memory_ || key.ends_with("cpuset")))
        return wrong("an object of type {} has no {}: the file is not complete", name, key);
      if (found != attributes.end() && !is_set(found->second))
        return wrong("{} \"{}\" is not a set", key, found->second);
    }
    return true;
  }

  // Leaves *value unchanged if the attribute is missing.
  template <class Number>
  bool number(const Attributes& attributes, const char* key, Number most, Number* value) {
    const auto found = attributes.find(key);
    if (found == attributes.end() || read_number(found->second, most, value)) return true;
    return wrong("{} \"{}\" is not a number from 0 to {}", key, found->second, most);
  }
  bool fill(const Attributes& attributes, Object& made) {
    hwloc_obj& object = made.object;
    const auto index = attributes.find("os_index");
    if (index != attributes.end() && index->second != "-1" &&
        !number(attributes, "os_index", kMostIndex, &object.os_index))
      return false;
    if ((object.type == HWLOC_OBJ_PU || object.type == HWLOC_OBJ_NUMANODE) &&
        object.os_index == HWLOC_UNKNOWN_INDEX)
      return wrong("a processor or a memory node has no os_index");
    processors_ += object.type == HWLOC_OBJ_PU;
    if (const auto name = attributes.find("name");
        name != attributes.end() && !name->second.empty())
      object.name = kept(name->second);
    constexpr uint64_t kMostBytes = uint64_t{1} << 60;
    if (object.type == HWLOC_OBJ_NUMANODE)
      return number(attributes, "local_memory", kMostBytes, &made.attributes.numanode.local_memory);
    if (is_cache(object.type))
      return number(attributes, "cache_size", kMostBytes, &made.attributes.cache.size);
    if (object.type == HWLOC_OBJ_BRIDGE) return bridge(attributes, made);
    if (object.type == HWLOC_OBJ_PCI_DEVICE) return pci_device(attributes, made.attributes.pcidev);
    if (object.type == HWLOC_OBJ_OS_DEVICE) {
      unsigned kind = HWLOC_OBJ_OSDEV_BLOCK;
      if (!number(attributes, "osdev_type", 1000u, &kind)) return false;
      made.attributes.osdev.type = static_cast<hwloc_obj_osdev_type_t>(kind);
    }
    return true;
  }
  bool bridge(const Attributes& attributes, Object& made) {
    made.attributes.bridge.upstream_type = HWLOC_OBJ_BRIDGE_HOST;
    const auto type = attributes.find("bridge_type");
    if (type == attributes.end()) return true;
    if (type->second != "0-1" && type->second != "1-1")
      return wrong("bridge_type \"{}\" is neither 0-1 nor 1-1", type->second);
    if (type->second[0] == '1') made.attributes.bridge.upstream_type = HWLOC_OBJ_BRIDGE_PCI;
    return true;
  }
  bool pci_device(const Attributes& attributes, hwloc_obj_attr_u::hwloc_pcidev_attr_s& pci) {
    if (const auto type = attributes.find("pci_type"); type != attributes.end()) {
      unsigned kind = 0, maker = 0, device = 0;
      if (std::sscanf(type->second.c_str(), "%4x [%4x:%4x]", &kind, &maker, &device) != 3)
        return wrong("pci_type \"{}\" is not of the form class [vendor:device]", type->second);
      pci.class_id = static_cast<unsigned short>(kind);
      pci.vendor_id = static_cast<unsigned short>(maker);
      pci.device_id = static_cast<unsigned short>(device);
    }
    constexpr float kMostGbPerS = 1e5F;
    return number(attributes, "pci_link_speed", kMostGbPerS, &pci.linkspeed) &&
           (pci.linkspeed >= 0 || wrong("pci_link_speed is negative"));
  }

  bool hang(Object& parent, Object& made, Element* element) {
    const hwloc_obj_type_t type = made.object.type, above = parent.object.type;
    if (type == HWLOC_OBJ_MISC) return true;
    made.object.parent = &parent.object;
    if (is_io(type)) {
      if (above == HWLOC_OBJ_MISC) return wrong("a device hangs below an object of type Misc");
      append(parent.object.io_first_child, parent.last_io, made.object);
      return true;
    }
    const bool below_memory = is_memory(above) && !is_memory(type);
    if (below_memory || is_io(above) || above == HWLOC_OBJ_MISC || above == HWLOC_OBJ_PU)
      return wrong("an object of this type cannot hang below its parent");
    if (is_memory(type) && sets_of_memory_) {
      append(parent.object.memory_first_child, parent.last_memory, made.object);
      return true;
    }
    Object* hung = &made;
    if (is_memory(type)) {  // hwloc 1 hangs what a memory node is nearest to below it
      hung = element->object = &make(HWLOC_OBJ_GROUP);
      append(hung->object.memory_first_child, hung->last_memory, made.object);
    }
    append(parent.object.first_child, parent.object.last_child, hung->object);
    parent.object.arity++;
    return true;
  }
  static void append(hwloc_obj_t& first, hwloc_obj_t& last, hwloc_obj& made) {
    (first ? last->next_sibling : first) = &made;
    last = &made;
  }

  const std::string_view text_;
  const std::string& source_;
  size_t at_ = 0;
  std::vector<Element> open_;
  HwlocXml made_;
  bool begun_ = false, sets_of_memory_ = false;
  size_t processors_ = 0;
  std::string problem_;
};

Result<HwlocXml> HwlocXml::parse(std::string_view text, const std::string& source) {
  return HwlocXmlReader(text, source).read();
}

}  // namespace fsccl::topo
