// The topologies of tests/topologies.
#pragma once
#include <gtest/gtest.h>

#include "topo/file.h"

namespace fsccl::topo {

inline Topology sample(const char* name) {
  Result<Topology> loaded = load_file(std::string(TOPOLOGIES) + "/" + name);
  EXPECT_TRUE(loaded.ok()) << loaded.status().text();
  return loaded.ok() ? loaded.take() : Topology{};
}

}  // namespace fsccl::topo
