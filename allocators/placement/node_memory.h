// Memory for the nodes of containers. Freed nodes are kept for the next ones, so in a step that
// repeats the one before containers take and drop nodes without asking the system. A reserve of 4
// KiB (kReserve) is kept for the case that the system gives no more memory: a function that changes
// several containers one after the other can then mostly finish, and is not stopped between them. A
// class that uses NodeMemory has one as a member, declared before its containers. A copy of the
// class gets a NodeMemory of its own. A container that is moved would go on using the memory of the
// object that it came from, so such a class declares copy functions and no move functions.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <memory_resource>
#include <new>
#include <utility>

namespace fsccl {

class NodeMemory {
 public:
  NodeMemory() = default;
  NodeMemory(const NodeMemory&) {}
  NodeMemory& operator=(const NodeMemory&) { return *this; }
  std::pmr::memory_resource* get() { return &nodes_; }

 private:
  static constexpr size_t kStep = 16, kLargestNode = 256, kSmallestChunk = 1024,
                          kLargestChunk = 16384, kReserve = 4096;

  class Nodes : public std::pmr::memory_resource {
   public:
    ~Nodes() override {
      while (chunks_) operator delete(std::exchange(chunks_, chunks_->next));
      operator delete(reserve_);
    }

   private:
    struct Link {
      Link* next;
    };

    void* do_allocate(size_t bytes, size_t alignment) override {
      if (!is_node(bytes, alignment))
        return operator new(bytes, std::align_val_t(std::max(alignment, kStep)));
      Link*& free = free_[(bytes - 1) / kStep];
      if (free) return std::exchange(free, free->next);
      const size_t size = (bytes + kStep - 1) / kStep * kStep;
      if (left_ < size) add_chunk();
      left_ -= size;
      return std::exchange(next_, next_ + size);
    }
    void do_deallocate(void* memory, size_t bytes, size_t alignment) override {
      if (!is_node(bytes, alignment))
        return operator delete(memory, std::align_val_t(std::max(alignment, kStep)));
      Link*& free = free_[(bytes - 1) / kStep];
      free = new (memory) Link{free};
    }
    bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
      return this == &other;
    }

    static bool is_node(size_t bytes, size_t alignment) {
      return bytes > 0 && bytes <= kLargestNode && alignment <= kStep;
    }

    // Adds a chunk. The rest of the chunk before is too small for one node and is not used again.
    void add_chunk() {
      if (!reserve_) reserve_ = operator new(kReserve, std::nothrow);
      size_t bytes = chunk_bytes_;
      void* memory = operator new(bytes, std::nothrow);
      if (!memory && chunks_) memory = std::exchange(reserve_, nullptr), bytes = kReserve;
      if (!memory) throw std::bad_alloc();
      chunk_bytes_ = std::min(2 * chunk_bytes_, kLargestChunk);
      chunks_ = new (memory) Link{chunks_};
      next_ = static_cast<std::byte*>(memory) + kStep;
      left_ = bytes - kStep;
    }

    std::array<Link*, kLargestNode / kStep> free_{};
    Link* chunks_ = nullptr;
    std::byte* next_ = nullptr;
    size_t left_ = 0, chunk_bytes_ = kSmallestChunk;
    void* reserve_ = nullptr;
  };

  Nodes nodes_;
};

}  // namespace fsccl
