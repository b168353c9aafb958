// A stretch of a channel's file as this process maps it: once, however many of its threads are
// ranks of the channel. Their pages would be the same ones, but the entries for them in the tables,
// and the faults that make these, would be as many as there are pairs of ranks.
#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"

namespace fsccl::shm {

class Mapping {
 public:
  // The stretch as it is mapped already, or newly; `offset` is one of a page.
  static Result<std::shared_ptr<Mapping>> of(int fd, size_t offset, size_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  std::byte* base() const { return base_; }
  size_t bytes() const { return key_.bytes; }

 private:
  struct Key {
    uint64_t device, inode;  // the file's numbers, which no other file gets while it is mapped
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
