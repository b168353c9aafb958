// The collectives of one communicator on memory of GPUs. At the first call its ranks agree what
// moves the bytes (agreement.h): NCCL if all ranks can use it; otherwise UCX if all ranks have one
// for GPUs; otherwise host memory and the host's engine ("staged"). NCCL does not do some calls as
// fsccl.h promises. These are done as follows:
//
// - 16-bit floats in reduce_scatter and all_reduce: exchanged, and summed in fp32 by this library's
//   kernel, if it has one for this GPU; otherwise staged
// - all sums of floats with FSCCL_REPRODUCIBLE=placement: the same
// - averages of wider floats over ranks whose number is no power of two: summed by NCCL, and
//   divided by this library's kernel
// - reductions of 16-bit integers: staged
// - messages: staged, because two ranks cannot agree without the others
//
// UCX exchanges bytes. With it all sums of floats of reduce_scatter and all_reduce are made as
// above, and other reductions and barriers are staged. Calls of a group are enqueued together. All
// work is in stream order. With NCCL the call returns at once, with UCX and the host it returns
// when it is done.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/communicator.h"
#include "comm/device/agreement.h"
#include "comm/device/device_call.h"
#include "comm/device/exchanged_sum.h"
#include "comm/device/staging.h"
#include "comm/device/stream_watch.h"
#include "comm/device/ucx_collectives.h"
#include "plan/native_plans.h"
#include "select/native.h"
#include "transports/nccl/nccl_comm.h"

namespace fsccl {

class JsonWriter;

class DeviceCollectives {
 public:
  // Returns the object of a communicator, which is made at the first call.
  static DeviceCollectives& of(Communicator& comm);
  ~DeviceCollectives();

  // Checks all calls of a group before anything is done for any of them. Calls on streams that are
  // being captured must be ones that a graph can have, and NCCL takes all or none of a group into a
  // graph.
  Status check_captures(int ordinal, const std::vector<DeviceCall>& calls);
  // Prepares the communicator for the GPU of this ordinal, once. Collective, blocking.
  Status prepare(int ordinal);
  // Runs one call, or those of a list together. prepare() must have been called.
  Status run(std::span<const DeviceCall> calls);

  bool prepared() const { return device_ != nullptr; }
  bool staged() const { return !nccl_ && !ucx_; }  // true also for calls that only move bytes
  const nccl::Features& features() const { return features_; }
  const cuda::Device& device() const { return *device_; }
  bool has_kernels() const { return decision_.kernels; }  // true if all ranks have them
  // Allows NCCL to use these bytes as symmetric memory from now on. They are one piece of physical
  // memory, of the same size on all ranks. If copy engines can gather in them, gather_in_place()
  // does so. Collective, blocking. If this is not possible, explain() says why, and everything goes
  // on without it.
  Status open_window(cuda::CUdeviceptr memory, uint64_t bytes);
  // Is called as often as the window was opened. After the last call its memory may be given back.
  // Not collective. The operations that used it on this rank's streams must be over.
  void close_window(cuda::CUdeviceptr memory);
  bool gathers_by_copy_engines() const { return copier_ != nullptr; }
  // Returns true if gather_in_place() can be called for these bytes. NCCL looks only where a buffer
  // begins, and takes the window for all of it, so a gather with windows must not leave one.
  bool can_gather_in_place(const std::byte* memory, uint64_t bytes) const;
  // Runs an all_gather of equal parts end to end, in which this rank's part is in its place
  // already. prepare() must have been called.
  Status gather_in_place(const DeviceCall& call);
  // Returns when the event has come, or an error if it will not come any more. After a failure
  // streams are released, except for copy engines that wait for a rank that has died. The memory
  // that these use is then left to them.
  Status finish(const cuda::OwnedEvent& event) const;
  // Returns the decisions as a JSON object, with the candidates of an operation of so many bytes;
  // an empty text before the ranks have decided.
  std::string explain(OpCode op, uint64_t bytes) const;

  struct Grouped {
    Communicator* comm;
    std::vector<DeviceCall> calls;
    int ordinal;
  };
  // Runs the calls that were deferred until the end of a group.
  static Status run_group(std::vector<Grouped>& group);

 private:
  using Algorithm = NativeAlgorithm;
  explicit DeviceCollectives(Communicator& comm) : comm_(comm) {}
  Status agree(const cuda::Device& device);
  Status agree_on_nccl(const cuda::Device& device, const std::vector<DeviceTerms>& terms);
  Status agree_on_exchanges(const cuda::Device& device, const std::vector<uint64_t>& hosts);
  Status start_nccl(const nccl::ncclUniqueId& id);
  Status restart_nccl(const std::string& why);
  Result<std::string> agree_on(const Status& mine, bool* lasting);
  Result<nccl::ncclUniqueId> share_id();
  Result<std::unique_ptr<nccl::Communicator>> open_nccl(const cuda::Device& device,
                                                        const nccl::ncclUniqueId& id,
                                                        bool copy_engines);
  Status make_copier(cuda::CUdeviceptr memory, uint64_t bytes, const nccl::ncclUniqueId& id);
  bool peers_reachable(const cuda::Device& device, const std::vector<DeviceTerms>& terms) const;
  // The plan of calls of one shape, by the algorithm that was chosen for it (select/native.h).
  struct Kept {
    DeviceCall call;  // gives the shape
    Algorithm algorithm{};
    Plan plan;
  };
  // The reference lives until the next plan_calls(), or until all plans are forgotten.
  const Kept& kept(const DeviceCall& call);
  void forget_plans();
  Plan make_plan(const DeviceCall& call, NativeAlgorithm by) const;
  NativeCall native_call(const DeviceCall& call, uint64_t bytes) const;
  void explain_call(JsonWriter& json, OpCode op, fsccl_dtype_t dtype, uint64_t bytes) const;
  // A call with the plan that carries it out.
  struct Planned {
    const DeviceCall* call;
    const Kept* kept;
  };
  using Calls = std::vector<const DeviceCall*>;
  // These are the parts of run(). They find the plans, enqueue together those first steps that NCCL
  // takes as they are, and then run the other steps.
  Result<std::vector<Planned>> plan_calls(std::span<const DeviceCall> calls);
  Calls calls_of_nccl(const std::vector<Planned>& calls) const;
  std::function<Status()> issue(nccl::Communicator& by, Calls calls);
  static std::set<cuda::CUstream> streams_of(const std::vector<Planned>& calls);
  Status run_followed(const std::set<cuda::CUstream>& streams, FunctionRef<Status()> act);
  Status run_others(const std::vector<Planned>& calls, Chain& chain);
  Status run_step(const Planned& one, const Step& step);
  DeviceCall call_of(const Planned& one, const Step& step) const;
  void record(const Planned& one, NativeAlgorithm by) const;
  struct GroupShare;
  static void run_beside_each_other(const std::vector<GroupShare*>& waiting);
  // Returns true if run_others() waits for other ranks in this call.
  bool waits(const Planned& one) const { return ucx_ || one.kept->algorithm == Algorithm::staged; }
  Status move(const Calls& calls);
  Status follow(cuda::CUstream stream) { return watch_ ? watch_->follow(stream) : success(); }
  bool divides(const DeviceCall& call) const;
  Status divide(const DeviceCall& call) const;
  Status run_exchanged_sum(const DeviceCall& call);
  Status run_staged(const DeviceCall& call);
  Status intact() const { return comm_.engine().intact(); }

  Communicator& comm_;
  const cuda::Device* device_ = nullptr;
  DeviceDecision decision_;
  bool one_host_ = false;
  nccl::Features features_;
  // copier_ is for all-gathers by copy engines only.
  std::unique_ptr<nccl::Communicator> nccl_, copier_;
  std::mutex copier_mutex_;  // guards the pointer against the watch's thread
  std::string why_not_ucx_;  // the reason if there is neither UCX nor NCCL
  std::unique_ptr<UcxCollectives> ucx_;
  std::unique_ptr<ExchangedSum> exchanged_sum_;
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<StreamWatch> watch_;  // watch of nccl_
  std::map<cuda::CUdeviceptr, int> window_users_;
  std::unordered_multimap<uint64_t, Kept> kept_;  // by a hash of the shape
  const Kept* last_ = nullptr;                    // the one that was used last
  cuda::CUdeviceptr scratch_ = 0;                 // memory for barriers
};

}  // namespace fsccl
