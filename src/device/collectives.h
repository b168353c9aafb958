// Collectives on memory of GPUs, of one communicator. At the first one its ranks agree what moves the bytes (agreement.h): NCCL,
// where all of them can, else host memory and the host's engine. What NCCL does not do as fsccl.h says it is done otherwise:
//   16-bit floats, summed by reduce_scatter and all_reduce: exchanged, and summed in fp32 by this library's kernel, where it has
//                  one for this GPU
//   any sums of floats with FSCCL_REPRODUCIBLE=placement: likewise; else staged
//   16-bit integers, reduced: staged
//   messages: staged, for two ranks cannot agree without the others
// Calls of a group are enqueued together. All is in stream order, and but for what is staged the call returns at once.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/agreement.h"
#include "device/device_call.h"
#include "device/folded_sum.h"
#include "device/staging.h"
#include "device/stream_watch.h"
#include "engine/communicator.h"
#include "transports/nccl/nccl_comm.h"

namespace fsccl {

class DeviceCollectives : public Companion {
 public:
  // The communicator's own, made when it is first asked for.
  static DeviceCollectives& of(Communicator& comm);
  ~DeviceCollectives() override;

  // Of calls on streams that are being captured, before anything is done for any of them: whether a graph can have them.
  Status check_captures(int ordinal, const std::vector<DeviceCall>& calls) const;
  // Collective, blocking; once. With the GPU of this ordinal.
  Status prepare(int ordinal);
  // One call, or those of a list together. Prepared.
  Status run(const std::vector<DeviceCall>& calls);

  bool prepared() const { return device_ != nullptr; }
  // Null: not by NCCL.
  nccl::Communicator* nccl() { return nccl_.get(); }
  const nccl::Features& features() const { return features_; }
  const cuda::Device& device() const { return *device_; }
  bool has_kernels() const { return decision_.kernels; }  // on all ranks
  // NCCL may use these bytes, one piece of physical memory and as many on all ranks, as symmetric memory from now on; where copy
  // engines can gather in them, gatherer() does so. Collective, blocking. Where that cannot be, explain() says why, and all goes on
  // without.
  Status open_window(cuda::DevicePointer memory, uint64_t bytes);
  // As often as it was opened: its memory may then be given back. Not collective; what used it on this rank's streams is over.
  void close_window(cuda::DevicePointer memory);
  nccl::Communicator& gatherer() { return copier_ ? *copier_ : *nccl_; }
  bool gathers_by_copy_engines() const { return copier_ != nullptr; }
  Status follow(cuda::Stream stream) { return watch_ ? watch_->follow(stream) : success(); }
  // What was decided, as a JSON object; empty before.
  std::string explain() const;

  struct Grouped {
    Communicator* comm;
    std::vector<DeviceCall> calls;
    int ordinal;
  };
  // What was put off until the end of a group.
  static Status run_group(std::vector<Grouped>& group);

 private:
  enum class Way : uint8_t { nccl, folded, staged };
  explicit DeviceCollectives(Communicator& comm) : comm_(comm) {}
  Status agree(const cuda::Device& device);
  Status start_nccl(const nccl::UniqueId& id);
  Status restart_nccl(const std::string& why);
  Result<std::string> agree_on(const Status& mine, bool* lasting);
  Result<nccl::UniqueId> share_id();
  Result<std::unique_ptr<nccl::Communicator>> open_nccl(const cuda::Device& device, const nccl::UniqueId& id, bool copy_engines);
  Status make_copier(cuda::DevicePointer memory, uint64_t bytes, const nccl::UniqueId& id);
  bool peers_reachable(const cuda::Device& device, const std::vector<DeviceTerms>& terms) const;
  Way way(const DeviceCall& call) const;
  Status enqueue_all(const std::vector<const DeviceCall*>& calls);
  Status run_folded(const DeviceCall& call);
  Status all_reduce_folded(const DeviceCall& call);
  Status run_staged(const DeviceCall& call);
  Status lost() const;

  Communicator& comm_;
  const cuda::Device* device_ = nullptr;
  DeviceDecision decision_;
  nccl::Features features_;
  std::unique_ptr<nccl::Communicator> nccl_, copier_;  // copier_: of all-gathers by copy engines alone
  std::mutex copier_mutex_;                            // of the pointer, against the watch's thread
  std::unique_ptr<FoldedSum> folded_;
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<StreamWatch> watch_;  // of nccl_
  std::map<cuda::DevicePointer, int> window_users_;
  cuda::DevicePointer scratch_ = 0;  // for barriers
};

}  // namespace fsccl
