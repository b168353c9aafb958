// Collectives on memory of GPUs, of one communicator. At the first call its ranks agree what moves
// the bytes (agreement.h): NCCL, where all ranks can use it; else UCX, where all have one for GPUs;
// else host memory and the host's engine ("staged"). Calls that NCCL does not do as fsccl.h says
// are done otherwise:
//   - 16-bit floats, summed by reduce_scatter and all_reduce: exchanged, and summed in fp32 by this
//     library's kernel, where it has one for this GPU; else staged
//   - any sums of floats with FSCCL_REPRODUCIBLE=placement: the same
//   - averages of wider floats over ranks whose number is no power of two: summed by NCCL, and
//     divided by this library's kernel
//   - 16-bit integers, reduced: staged
//   - messages: staged, because two ranks cannot agree without the others
// By UCX bytes are exchanged, and any sums of floats of reduce_scatter and all_reduce are made as
// above; other reductions and barriers are staged. Calls of a group are enqueued together. All work
// is in stream order. By NCCL the call returns at once, by UCX and by the host when it is done.
#pragma once
#include <map>
#include <memory>
#include <mutex>
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
  // The communicator's own, made when it is first asked for.
  static DeviceCollectives& of(Communicator& comm);
  ~DeviceCollectives();

  // Before anything is done for any of them: whether a graph can have those that are on streams
  // that are being captured. They are all calls of a group, of which NCCL takes all or none into a
  // graph.
  Status check_captures(int ordinal, const std::vector<DeviceCall>& calls);
  // Collective, blocking; once. With the GPU of this ordinal.
  Status prepare(int ordinal);
  // One call, or those of a list together. Prepared.
  Status run(std::span<const DeviceCall> calls);

  bool prepared() const { return device_ != nullptr; }
  bool staged() const { return !nccl_ && !ucx_; }  // true also for calls that only move bytes
  const nccl::Features& features() const { return features_; }
  const cuda::Device& device() const { return *device_; }
  bool has_kernels() const { return decision_.kernels; }  // on all ranks
  // NCCL may use these bytes, one piece of physical memory and as many on all ranks, as symmetric
  // memory from now on; where copy engines can gather in them, gather_in_place() does so.
  // Collective, blocking. Where that cannot be, explain() says why, and all goes on without.
  Status open_window(cuda::CUdeviceptr memory, uint64_t bytes);
  // Called as often as the window was opened: its memory may then be given back. Not collective;
  // what used it on this rank's streams is over.
  void close_window(cuda::CUdeviceptr memory);
  bool gathers_by_copy_engines() const { return copier_ != nullptr; }
  // Returns true if gather_in_place() can be called for these bytes. NCCL looks where a buffer
  // begins, and takes the window for all of it, so no gather with windows may leave one.
  bool can_gather_in_place(const std::byte* memory, uint64_t bytes) const;
  // An all_gather of equal parts end to end, this rank's in its place. Prepared.
  Status gather_in_place(const DeviceCall& call);
  // Returns when the event has come, or an error where it does not come any more. After a failure
  // streams are let go, but for copy engines that wait for a rank that has died: what they use is
  // then left to them.
  Status finish(const cuda::OwnedEvent& event) const;
  // Returns the decisions as a JSON object, with the candidates of an operation of so many bytes;
  // an empty text before the ranks have decided.
  std::string explain(OpCode op, uint64_t bytes) const;

  struct Grouped {
    Communicator* comm;
    std::vector<DeviceCall> calls;
    int ordinal;
  };
  // Runs the calls that were put off until the end of a group.
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
    DeviceCall call;  // its shape
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
  // The parts of run(): find the plans, enqueue the first steps that NCCL takes as they are
  // together, and then run the other steps.
  Result<std::vector<Planned>> plan_calls(std::span<const DeviceCall> calls);
  Calls calls_of_nccl(const std::vector<Planned>& calls) const;
  std::function<Status()> issue(nccl::Communicator& by, Calls calls);
  Status run_others(const std::vector<Planned>& calls);
  Status run_step(const Planned& one, const Step& step);
  DeviceCall call_of(const Planned& one, const Step& step) const;
  void record(const Planned& one, NativeAlgorithm by) const;
  struct GroupShare;
  static void run_beside_each_other(const std::vector<GroupShare*>& waiting);
  // run_others(), for other ranks
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
  // copier_: of all-gathers by copy engines alone
  std::unique_ptr<nccl::Communicator> nccl_, copier_;
  std::mutex copier_mutex_;  // guards the pointer against the watch's thread
  std::string why_not_ucx_;  // where there are none, and no NCCL
  std::unique_ptr<UcxCollectives> ucx_;
  std::unique_ptr<ExchangedSum> exchanged_sum_;
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<StreamWatch> watch_;  // watch of nccl_
  std::map<cuda::CUdeviceptr, int> window_users_;
  std::unordered_multimap<uint64_t, Kept> kept_;  // by a hash of the shape
  const Kept* last_ = nullptr;                    // the one that was used last
  cuda::CUdeviceptr scratch_ = 0;                 // for barriers
};

}  // namespace fsccl
