// Device memory for tables. The memory of a destroyed table is kept for the next one, because
// freeing memory waits until the whole device is idle, and a stream of this process may wait for a
// peer that waits for work behind the call. No more of each size (a power of two) is kept than was
// in use at once. A program that makes new tables in every step, because its gradients move,
// therefore does not allocate from the driver each time.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "cuda/device.h"

namespace fsccl::cuda {

class TableMemory {
  // By size, which is a power of two. A node moves between the map and those who use the memory, so
  // that memory can be given back when the program has no memory left.
  using Spare = std::multimap<size_t, CUdeviceptr>;

 public:
  explicit TableMemory(const Device& device) : device_(device) {}
  TableMemory(const TableMemory&) = delete;

  // Memory of a table. The destructor gives it back; no launched work may use it any more then.
  class Bytes {
   public:
    explicit Bytes(TableMemory& from) : from_(from) {}
    ~Bytes() { from_.give_back(std::move(memory_)); }
    Bytes(const Bytes&) = delete;

    CUdeviceptr begin() const { return memory_.mapped(); }
    template <class T>
    T* at(size_t offset) const {
      return reinterpret_cast<T*>(begin() + offset);
    }

   private:
    friend class TableMemory;
    TableMemory& from_;
    Spare::node_type memory_;  // empty if there is none
  };
  // Returns at least `bytes` bytes. Any thread may call it; the caller holds a Current.
  Result<std::unique_ptr<Bytes>> take(size_t bytes);

 private:
  void give_back(Spare::node_type memory);

  const Device& device_;
  std::mutex mutex_;
  Spare spare_;
};

}  // namespace fsccl::cuda
