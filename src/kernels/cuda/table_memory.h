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
 public:
  explicit TableMemory(const Device& device) : device_(device) {}
  TableMemory(const TableMemory&) = delete;

  // Memory of a table. The destructor gives it back; no launched work may use it any more then.
  class Bytes {
   public:
    Bytes(TableMemory& from, CUdeviceptr begin, size_t bytes)
        : from_(from), begin_(begin), bytes_(bytes) {}
    ~Bytes() { from_.give_back(begin_, bytes_); }
    Bytes(const Bytes&) = delete;

    CUdeviceptr begin() const { return begin_; }
    template <class T>
    T* at(size_t offset) const {
      return reinterpret_cast<T*>(begin_ + offset);
    }

   private:
    TableMemory& from_;
    const CUdeviceptr begin_;
    const size_t bytes_;
  };
  // Returns at least `bytes` bytes. Any thread may call it; the caller holds a Current.
  Result<std::unique_ptr<Bytes>> take(size_t bytes);

 private:
  void give_back(CUdeviceptr begin, size_t bytes);

  const Device& device_;
  std::mutex mutex_;
  std::multimap<size_t, CUdeviceptr> spare_;  // by size, which is a power of two
};

}  // namespace fsccl::cuda
