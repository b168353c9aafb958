// HSDP's two dimensions of communicators, made by splits of one: the ranks that share a unit's
// parameters, and those that hold the same shard.
#pragma once
#include <vector>

#include "support.h"

namespace fsccl::testing {

// A mesh of `groups` groups of `ranks / groups` ranks. A rank's shard number is its place in its
// group.
struct Mesh {
  Mesh(const Rank& self, int groups) : per_group(self.ranks / groups) {
    group = self.rank / per_group;
    EXPECT_OK(fsccl_comm_split(self.comm, group, self.rank, nullptr, &shard));
    EXPECT_OK(fsccl_comm_split(self.comm, self.rank % per_group, self.rank, nullptr, &replicas));
    for (int g = 0; g < groups; ++g) {
      contributors.emplace_back();
      for (int i = 0; i < per_group; ++i) contributors.back().push_back(g * per_group + i);
    }
  }
  ~Mesh() {
    for (const fsccl_comm_t comm : {shard, replicas})
      if (comm) {
        EXPECT_OK(fsccl_comm_destroy(comm));
      }
  }
  Mesh(const Mesh&) = delete;

  int per_group, group;
  fsccl_comm_t shard = nullptr, replicas = nullptr;
  std::vector<std::vector<int>> contributors;  // ranks of the whole, by group
};

}  // namespace fsccl::testing
