// Reads the XML in which hwloc 1 and 2 write a machine (`lstopo machine.xml`). hwloc itself does
// not read it here, because it trusts the file: a missing attribute made it follow a null pointer.
// This reader trusts nothing, and an error names the file, the line and what was expected.
#pragma once
#include <hwloc.h>

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace fsccl::topo {

// The objects of the file as hwloc would represent them: types, numbers, names, infos, attributes,
// and the lists of children. Sets of processors and of memory nodes are checked but not kept: the
// processors of a core are its PUs.
class HwlocXml {
 public:
  static Result<HwlocXml> parse(std::string_view text, const std::string& source);
  hwloc_obj_t machine() { return &objects_.front().object; }

 private:
  friend class HwlocXmlReader;
  struct Object {
    hwloc_obj object{};
    hwloc_obj_attr_u attributes{};
    std::vector<hwloc_info_s> infos;
    hwloc_obj_t last_memory = nullptr, last_io = nullptr;
  };
  std::deque<Object> objects_;  // they and the texts stay where they are
  std::deque<std::string> texts_;
};

}  // namespace fsccl::topo
