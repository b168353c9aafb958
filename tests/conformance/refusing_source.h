// A source from outside (outside_source.c) for tests of what stands on it, and short forms of its
// table's functions.
#pragma once
#include <deque>

#include "source_stack.h"

namespace fsccl::testing {

inline fsccl_status_t get(const fsccl_allocator_t& table, size_t bytes, void** pointer,
                          void* stream = nullptr) {
  return table.allocate(table.context, bytes, 64, stream, pointer);
}
inline fsccl_status_t give(const fsccl_allocator_t& table, void* pointer, size_t bytes,
                           void* stream = nullptr) {
  return table.deallocate(table.context, pointer, bytes, stream);
}

// A source that refuses when it is told to, and destroys what was put on it at the end.
struct Refusing {
  Refusing() { outside_source_init(source.get(), 1 << 20, 0, &table); }
  ~Refusing() {
    EXPECT_EQ(source->out, 0u);
    EXPECT_EQ(source->wrong_frees, 0);
    for (const fsccl_allocator_t& one : made) EXPECT_OK(one.destroy(one.context));
  }
  fsccl_allocator_t* add() { return &made.emplace_back(); }

  std::unique_ptr<outside_source_t> source = std::make_unique<outside_source_t>();
  fsccl_allocator_t table;
  std::deque<fsccl_allocator_t> made;
};

}  // namespace fsccl::testing
