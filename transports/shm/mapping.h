// A range of a channel's file as this process maps it: once, however many of its threads are ranks
// of the channel. Several mappings would have the same pages, but there would be as many entries in
// the page tables, and as many faults that make these, as there are pairs of ranks.
#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"

namespace fsccl::shm {

class Mapping {
 public:
  // Returns the mapping of the range, and makes it if there is none. `offset` is that of a page.
  static Result<std::shared_ptr<Mapping>> of(int fd, size_t offset, size_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  std::byte* base() const { return base_; }
  size_t bytes() const { return key_.bytes; }

 private:
  struct Key {
    uint64_t device, inode;  // identify the file; no other one gets them while it is mapped
    size_t offset, bytes;
    auto operator<=>(const Key&) const = default;
  };
  struct All;
  static All& all();
  explicit Mapping(const Key& key) : key_(key) {}

  const Key key_;
  std::byte* base_ = nullptr;
};

}  // namespace fsccl::shm
