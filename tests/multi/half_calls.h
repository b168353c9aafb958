// The calls that half_call_test.cpp lets fail in the middle, and what they share.
#pragma once
#include <fsccl/codec.h>
#include <fsccl/fsccl.h>

#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "multi/processes.h"

namespace fsccl::testing {

constexpr int kRanks = 4;

struct Call {
  fsccl_comm_t comm = nullptr;   // the communicator of the call, which may fail with it
  std::function<void()> before;  // preparations, in which no allocation fails
  std::function<fsccl_status_t()> run;
  std::function<void()> give_back;
};
using Maker = std::function<Call(const Child&, fsccl_comm_t world)>;
using NamedCalls = std::vector<std::pair<std::string, Maker>>;

const NamedCalls& operations();  // calls that submit several operations
const NamedCalls& agreements();  // calls in which ranks agree in several steps

// Ends the process with `what` and the last error unless `good`.
void must(bool good, const std::string& what);
// Ends the process with `what` and the last error if a call failed, in which no allocation fails.
// The allocation that failed before may have been that of a link between hosts, which all
// communicators of the job share. Such a link is broken for good. If the error of the call says so,
// the exit code is kLinkBroken.
constexpr int kLinkBroken = 77;
void must_do(fsccl_status_t status, const char* what);
fsccl_comm_t part_of(fsccl_comm_t world, int color);

// The properties of a MadeUnit: whether it has replicas, and its codecs.
struct UnitCase {
  bool replicas = false;
  const fsccl_codec_t* gather = nullptr;
  const fsccl_codec_t* sums = nullptr;
};
// A unit on communicators and a pool of its own.
class MadeUnit {
 public:
  static constexpr size_t kParams = 3;
  // An array, because the allocations of a test must not fail.
  using Params = std::array<fsccl_param_t, kParams>;
  static Params params();

  MadeUnit(const UnitCase& c, const Child& self, fsccl_comm_t world);
  fsccl_status_t create();  // can be called again after an error
  void destroy();           // destroys everything but comm()

  fsccl_comm_t comm() const { return replicas_ ? replicas_ : shards_; }
  fsccl_pool_t pool() const { return pool_; }
  fsccl_unit_t unit() const { return unit_; }

 private:
  UnitCase case_;
  fsccl_comm_t shards_ = nullptr, replicas_ = nullptr;
  fsccl_pool_t pool_ = nullptr;
  fsccl_unit_t unit_ = nullptr;
};

}  // namespace fsccl::testing
