// Memory for the nodes of containers, kept for the next nodes: in a step that repeats the one before, containers that take and drop
// nodes ask the system for nothing. A class has one as a member before its containers. Its copies get their own; it is not moved,
// since a moved container would go on using the memory of the one it came from: such a class declares copies alone.
#pragma once
#include <memory_resource>

namespace fsccl {

class NodeMemory {
 public:
  NodeMemory() = default;
  NodeMemory(const NodeMemory&) {}
  NodeMemory& operator=(const NodeMemory&) { return *this; }
  std::pmr::memory_resource* get() { return &pool_; }

 private:
  std::pmr::unsynchronized_pool_resource pool_;
};

}  // namespace fsccl
